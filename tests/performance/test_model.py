"""What a split is worth, with and without a gateway that turns requests away."""

from __future__ import annotations

import pytest
from tests.balance.small_workers import SLO, SPEED

from fulcrum.load.demand import Demand, Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel

RATES = (0.4, 0.8, 1.2, 1.6, 2.0)


def prompts(rate: float) -> Load:
    demand = Demand(rate=rate, isl_tokens=195, osl_tokens=2.1, isl_cv2=0.1, osl_cv2=0.1)
    return Load(rate=rate, prefill=demand, decode=demand)


def split(prefill: int, decode: int) -> Layout:
    return Layout.of(prefill={"p": prefill}, decode={"p": decode})


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("turns_away", [True, False])
def test_a_split_is_worth_at_least_what_it_serves_in_time_anyway(rate: float, *, turns_away: bool) -> None:
    service, load = PerformanceModel({"p": SPEED}, SLO, turns_away=turns_away), prompts(rate)
    for layout in (split(3, 1), split(2, 2), split(1, 3)):
        assert rate >= service.goodput(layout, load) >= rate * service.attainment(layout, load)


@pytest.mark.parametrize("rate", RATES[2:])
def test_where_nobody_is_turned_away_the_split_that_keeps_up_is_worth_more(rate: float) -> None:
    """With admission, two prefill workers serve nearly as many as three: long prompts are turned away."""
    service = PerformanceModel({"p": SPEED}, SLO, turns_away=False)
    load = prompts(rate)
    three, two = service.goodput(split(3, 1), load), service.goodput(split(2, 2), load)
    assert three > 1.05 * two


SIMULATED = {
    0.7: (0.809, 0.979, 0.994),
    1.2: (0.617, 0.895, 0.937),
    1.6: (0.511, 0.829, 0.886),
    2.0: (0.439, 0.753, 0.833),
}
"""`benchmarks/splits.py`: share inside the SLO by requests/s, of 1P:3D, 2P:2D and 3P:1D with admission."""


@pytest.mark.parametrize(("rate", "shares"), SIMULATED.items())
def test_who_waits_for_a_place_in_a_small_batch_is_not_lost(rate: float, shares: tuple[float, ...]) -> None:
    service, load = PerformanceModel({"p": SPEED}, SLO), prompts(rate)
    found = tuple(service.goodput(split(prefill, 4 - prefill), load) / rate for prefill in (1, 2, 3))
    assert found == pytest.approx(shares, abs=0.1)
    assert max(found) == found[2]
