"""The production planner inside the simulator: its actions take effect, and it settles."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.names import Role
from fulcrum.api.types import Admission, AdmissionPolicy, Balance, BalanceMode, InferenceClusterSpec
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Ours, StaticSplit
from fulcrum.simulation.traffic import Phase


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


def test_auto_leaves_a_split_that_cannot_serve_the_load() -> None:
    speed = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)
    phases = [
        Phase(seconds=240, requests_per_second=8, prompt_tokens_mean=4000, output_tokens_mean=60),
        Phase(seconds=240, requests_per_second=12, prompt_tokens_mean=300, output_tokens_mean=700),
    ]
    load = phased(phases, seed=1)
    auto = msgspec.structs.replace(
        make_spec(ratio=(2, 2), low=4),
        balance=Balance(mode=BalanceMode.AUTO),
        admission=Admission(policy=AdmissionPolicy.OFF),
    )
    policy = Ours(auto, least_turn_seconds=5.0, initial=[("p", Role.PREFILL)] + [("p", Role.DECODE)] * 3)
    ours = simulate(load, make_cluster(speed), policy, slo=SLO)
    stayed = simulate(load, make_cluster(speed), StaticSplit(pool="p", prefill=1, decode=3), slo=SLO)
    assert ours.count(Outcome.SERVED) == len(load)
    assert 1 <= ours.flips <= 8
    assert policy.forecasts
    assert ours.summary(SLO).attainment > stayed.summary(SLO).attainment + 0.1


def test_without_a_start_the_plan_makes_the_first_workers() -> None:
    assert (
        Ours(make_spec(ratio=(1, 3)), speeds={}).initial(make_cluster())
        == [("p", Role.PREFILL)] + [("p", Role.DECODE)] * 3
    )
