"""Mooncake's rules, schedules with foresight, and the bound that nothing exceeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from contests.bound import most_within
from contests.foresight import Setting, Step, run_splits, with_foresight
from contests.rivals.mooncake import Mooncake, Rejection
from contests.rivals.schedule import Schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload, poisson

from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.best_static import best_of, candidates
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Split
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.workload import Workload, merged

SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)


def setting(workload: Workload) -> Setting:
    def make(steps: Sequence[Step]) -> Schedule:
        return Schedule(pool="p", splits=steps, admission=AdmissionPolicy.PREDICTIVE)

    return Setting(workload=workload, cluster=make_cluster(SPEED), slo=SLO, make=make)


def test_a_schedule_flips_when_it_says_and_loses_nothing() -> None:
    load = poisson(rate=5, count=400, prompt=500, output=100, seed=1)
    policy = Schedule(pool="p", splits=[(0.0, Split(1, 3)), (20.0, Split(3, 1)), (40.0, Split(0, 0, 4))])
    result = simulate(load, make_cluster(SPEED, flip_seconds=0.0), policy, slo=SLO)
    assert [(each.seconds, each.prefill, each.decode, each.mixed) for each in result.fleet] == [
        (0.0, 1, 3, 0), (20.0, 3, 1, 0), (40.0, 0, 0, 4),
    ]  # fmt: skip
    assert result.flips == 2 + 4
    assert result.count(Outcome.SERVED) == 400


@pytest.mark.parametrize("splits", [[], [(1.0, Split(1, 1))], [(0.0, Split(1, 1)), (5.0, Split(1, 2))]])
def test_a_schedule_is_checked(splits: list[tuple[float, Split]]) -> None:
    with pytest.raises(ValueError, match="from second 0 on"):
        Schedule(pool="p", splits=splits)


def test_foresight_follows_the_phases_and_stays_below_the_bound() -> None:
    heavy_in = Phase(seconds=300, requests_per_second=7, prompt_tokens_mean=4000, output_tokens_mean=40)
    heavy_out = Phase(seconds=300, requests_per_second=11, prompt_tokens_mean=300, output_tokens_mean=700)
    load = phased([heavy_in, heavy_out], seed=1)
    common = setting(load)
    kept = run_splits(common, [Split(p, 4 - p) for p in (1, 2, 3)])
    result, plan = with_foresight(common, kept)
    (_, first), *_, (_, last) = plan.splits
    assert first.prefill > last.prefill
    best = kept[best_of(kept, SLO)]
    assert result.within(SLO).sum() > best.within(SLO).sum() * 1.02
    assert result.within(SLO).sum() <= most_within(load, SPEED, 4, SLO)


def test_foresight_keeps_one_split_where_nothing_changes() -> None:
    common = setting(poisson(rate=3, count=300, prompt=500, output=100, seed=2))
    kept = run_splits(common, candidates(4))
    result, _ = with_foresight(common, kept)
    assert result.within(SLO).sum() == max(each.within(SLO).sum() for each in kept.values())


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0.5, 40),
    prompt=st.integers(20, 4000),
    output=st.integers(1, 400),
    split=st.sampled_from([Split(1, 3), Split(2, 2), Split(3, 1), Split(0, 0, 4)]),
    admission=st.sampled_from([AdmissionPolicy.OFF, AdmissionPolicy.PREDICTIVE]),
    seed=st.integers(0, 10),
)
def test_nothing_exceeds_the_bound(
    *, rate: float, prompt: int, output: int, split: Split, admission: AdmissionPolicy, seed: int
) -> None:
    load = poisson(rate=rate, count=200, prompt=prompt, output=output, seed=seed)
    policy = Schedule(pool="p", splits=[(0.0, split)], admission=admission)
    result = simulate(load, make_cluster(SPEED), policy, slo=SLO)
    assert result.within(SLO).sum() <= most_within(load, SPEED, 4, SLO)


def test_the_bound_is_reached_where_work_is_all_there_is() -> None:
    """Two workers at 1 s per prompt of 1000 tokens: 600 s are good for 2 x 600 prompts, and the SLO's span."""
    speed = make_speed(prefill=(0.0, 1e-3, 0.0), decode=(0.001, 0.0, 0.0))
    load = make_workload([(n * 0.1, 1000, 1) for n in range(6000)])
    assert most_within(
        load, speed, 2, LatencyTargets(ttft_seconds=2, tpot_seconds=0.1, attainment=0.9)
    ) == pytest.approx(1200, 0.01)
    assert most_within(load, speed, 2, LatencyTargets(ttft_seconds=0.9, tpot_seconds=0.1, attainment=0.9)) == 0


def test_the_bound_counts_shared_prefixes_once() -> None:
    speed = make_speed(prefill=(0.0, 1e-3, 0.0), decode=(0.001, 0.0, 0.0))
    alone = make_workload([(n * 0.1, 1024, 1) for n in range(6000)])
    shared = replace(alone, prefix_ids=tuple((1, 2) for _ in range(6000)))
    slo = LatencyTargets(ttft_seconds=2, tpot_seconds=0.1, attainment=0.9)
    assert most_within(alone, speed, 1, slo) < 700
    assert most_within(shared, speed, 1, slo) == 6000


def overload() -> Workload:
    """More decode than the workers can do, in waves."""
    waves = [
        Phase(seconds=60, requests_per_second=rate, prompt_tokens_mean=1000, output_tokens_mean=400)
        for rate in (12, 3, 14, 3, 16)
    ]
    return phased(waves, seed=3)


def test_mooncakes_rules_waste_less_the_earlier_they_look() -> None:
    slo = LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.02, attainment=0.9)
    load = overload()
    found = {}
    for rule in Rejection:
        result = simulate(
            load, make_cluster(SPEED), Mooncake(pool="p", splits=[(0.0, Split(3, 1))], rule=rule), slo=slo
        )
        late = int(((result.outcome == Outcome.REJECTED) & (result.computed_tokens > 0)).sum())
        found[rule] = (result.count(Outcome.REJECTED), late)
        assert result.count(Outcome.SERVED) + result.count(Outcome.REJECTED) == len(load)
        assert set(result.rejections) <= {Reason.TTFT_UNREACHABLE, Reason.TPOT_UNREACHABLE}
    assert found[Rejection.BASELINE][1] > 0
    assert found[Rejection.EARLY][1] == found[Rejection.PREDICTIVE][1] == 0
    assert found[Rejection.EARLY] != found[Rejection.PREDICTIVE]


def test_mooncake_turns_nobody_away_without_load() -> None:
    load = merged([poisson(rate=2, count=100, prompt=400, output=50, seed=seed) for seed in (1, 2)])
    for rule in Rejection:
        result = simulate(
            load, make_cluster(SPEED), Mooncake(pool="p", splits=[(0.0, Split(2, 2))], rule=rule), slo=SLO
        )
        assert result.count(Outcome.SERVED) == len(load)


def test_progress_is_told_while_it_runs() -> None:
    load = poisson(rate=5, count=1000, prompt=300, output=30, seed=1)
    told: list[int] = []
    policy = Schedule(pool="p", splits=[(0.0, Split(1, 1))])
    simulate(load, make_cluster(SPEED), policy, slo=SLO, on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1000
    assert len(told) <= 250
    assert np.diff(told).max() <= 10
