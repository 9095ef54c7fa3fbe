"""The production planner inside the simulator: its actions take effect, and it settles."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Ours


def make_spec(*, ratio: tuple[int, int], low: int = 0, high: int = 4, style: str = "Immediate") -> InferenceClusterSpec:
    balance: dict[str, Any] = {
        "mode": "Manual",
        "ratio": {"prefill": ratio[0], "decode": ratio[1]},
        "flip": {"style": style},
    }
    pools = [{"name": "p", "accelerator": "H100", "workers": {"min": low, "max": high}}]
    return msgspec.convert({"model": {"name": "m"}, "pools": pools, "balance": balance}, InferenceClusterSpec)


@pytest.mark.parametrize("style", ["Immediate", "Drain"])
def test_flips_towards_the_ratio_and_loses_nothing(style: str) -> None:
    speed = make_speed()
    policy = Ours(
        make_spec(ratio=(1, 3), style=style),
        speeds={"p": speed},
        initial=[("p", Role.PREFILL)] * 3 + [("p", Role.DECODE)],
    )
    load = poisson(rate=5, count=600, prompt=500, output=100, seed=1)
    result = simulate(load, make_cluster(speed), policy, slo=SLO)
    assert result.flips == 2
    assert (result.fleet[-1].prefill, result.fleet[-1].decode) == (1, 3)
    assert result.count(Outcome.SERVED) == 600
    assert policy.forecasts


def test_creates_and_deletes_workers_within_the_budget() -> None:
    speed = make_speed()
    load = poisson(rate=5, count=600, prompt=500, output=100, seed=2)
    grown = simulate(
        load,
        make_cluster(speed, start_seconds=20.0),
        Ours(make_spec(ratio=(2, 4), high=6), speeds={"p": speed}, initial=[("p", Role.PREFILL), ("p", Role.DECODE)]),
        slo=SLO,
    )
    assert grown.pods_started == 4
    assert (grown.fleet[-1].prefill, grown.fleet[-1].decode, grown.fleet[-1].pods) == (2, 4, 6)
    assert max(sample.pods for sample in grown.fleet) == 6
    shrunk = simulate(
        load,
        make_cluster(speed),
        Ours(
            make_spec(ratio=(1, 1), high=6),
            speeds={"p": speed},
            initial=[("p", Role.PREFILL)] * 3 + [("p", Role.DECODE)] * 3,
        ),
        slo=SLO,
    )
    assert (shrunk.fleet[-1].prefill, shrunk.fleet[-1].decode, shrunk.fleet[-1].pods) == (1, 1, 2)
    assert shrunk.count(Outcome.SERVED) == 600
    assert shrunk.gpu_seconds < 6 * shrunk.end_of_run_seconds


def test_without_a_start_the_plan_makes_the_first_workers() -> None:
    assert Ours(make_spec(ratio=(1, 3)), speeds={}).initial() == [("p", Role.PREFILL)] + [("p", Role.DECODE)] * 3
