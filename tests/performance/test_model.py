"""What a split is worth, with and without a gateway that turns requests away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.decide.small_workers import SLO, SPEED

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel, reachable

SLOW_LINK = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.08, prefill_b=9.6e-4, prefill_c=4e-8, decode_a=0.2, decode_b=3.8e-4, decode_c=8.6e-7
    ),
    kv_capacity_tokens=55_000,
    transfer_base_seconds=0.014,
    transfer_seconds_per_token=2.2e-4,
)
"""Llama-3.1-8B on slices of an A10 behind a link that takes 0.65 s for a prompt of 3,000 tokens."""
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


def test_one_link_does_not_take_the_prompts_of_eleven_workers() -> None:
    """A decode worker pulls one prompt after the other, however small its batch is."""
    model = PerformanceModel({"p": SLOW_LINK}, LatencyTargets(ttft_seconds=29.0, tpot_seconds=0.355, attainment=0.95))
    demand = Demand(rate=3.0, isl_tokens=3000, osl_tokens=6, isl_cv2=1.2, osl_cv2=0.3)
    load = Load(rate=3.0, prefill=demand, decode=demand)
    pulls_per_second = 1 / (3000 * SLOW_LINK.transfer_seconds_per_token)
    assert model.goodput(split(11, 1), load) <= pulls_per_second
    assert model.goodput(split(9, 3), load) > 1.5 * pulls_per_second
    assert model.attainment(split(11, 1), load.scaled(0.8)) == 0.0


def test_a_promise_that_no_worker_can_keep_at_any_pace_stays_as_it_is() -> None:
    """A KV cache that holds no request: no pace helps; the first token is still promised as soon as it can come."""
    tiny = replace(SPEED, kv_capacity_tokens=10)
    slo = LatencyTargets(ttft_seconds=1e-3, tpot_seconds=1e-3, attainment=0.95)
    found = reachable({"a": tiny}, slo, prompts(1.0))
    assert found.tpot_seconds == slo.tpot_seconds
    assert slo.ttft_seconds < found.ttft_seconds < 60
    assert reachable({}, slo, prompts(1.0)) == slo
