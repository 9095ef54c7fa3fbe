"""Our copy of NVIDIA Dynamo's planner: its GPU budget, its aggregated mode, and its decisions on fixed GPUs."""

from __future__ import annotations

import pytest
from contests.rivals.dynamo import Dynamo, DynamoMode
from contests.rivals.dynamo_budget import Budget, Counts
from contests.rivals.dynamo_expectation import Expectation
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.api.names import Role
from fulcrum.simulation.arrivals import ladder
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.speed import StepTimes

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)
CHAT = LogNormalLengths(prompt_mean=1150, output_mean=210, prompt_spread=0.9, output_spread=0.8)
LONG_PROMPTS = LogNormalLengths(prompt_mean=5000, output_mean=30, prompt_spread=0.3, output_spread=0.3)
STEPS = stream(rate=ladder([(200, 4), (200, 24), (200, 4)]), lengths=CHAT, seconds=600, seed=1)


@pytest.mark.parametrize(
    ("least", "most", "current", "proposed", "expected"),
    [
        (6, 6, (3, 3), (2, 2), (3, 3)),  # at the floor nothing is released
        (6, 6, (3, 3), (4, 3), (3, 3)),  # at the ceiling nothing is added without a donor
        (6, 6, (3, 3), (4, 2), (4, 2)),  # one gives, the other takes
        (6, 6, (3, 3), (5, 2), (4, 2)),  # as far as the ceiling allows
        (6, 6, (3, 3), (2, 3), (3, 3)),
        (6, 6, (3, 3), (4, 1), (4, 1)),  # the planner tolerates one worker less than the floor
        (6, 6, (4, 1), (5, 2), (4, 2)),
        (6, 6, (1, 3), (1, 3), (2, 4)),  # below the band: scaled up in proportion
        (2, 6, (2, 2), (3, 3), (3, 3)),
        (2, 6, (2, 2), (6, 6), (3, 3)),
        (2, 6, (3, 3), (1, 1), (1, 1)),
        (6, 6, (6,), (3,), (6,)),
        (2, 6, (4,), (9,), (6,)),
        (2, 6, (4,), (1,), (1,)),
        (4, 6, (8,), (8,), (6,)),
    ],
)
def test_the_budget_holds_what_the_planner_holds(
    least: int, most: int, current: Counts, proposed: Counts, expected: Counts
) -> None:
    assert Budget(least=least, most=most).guarded(current, proposed) == expected


COUNTS = st.tuples(st.integers(1, 8), st.integers(1, 8))


@given(least=st.integers(0, 16), spare=st.integers(0, 6), current=COUNTS, proposed=COUNTS)
def test_no_decision_leaves_the_budget(least: int, spare: int, current: Counts, proposed: Counts) -> None:
    budget = Budget(least=least, most=max(least + spare, 2))
    decided = budget.guarded(current, proposed)
    assert min(decided) >= 1
    assert budget.least - 1 <= sum(decided) <= budget.most
    if budget.least - 1 <= sum(current) <= budget.most:
        for before, asked, after in zip(current, proposed, decided, strict=True):
            assert min(before, asked) <= after <= max(before, asked)


@pytest.mark.parametrize("mode", list(DynamoMode))
@pytest.mark.parametrize("begin", [{P: 3, D: 3}, {M: 6}], ids=["disaggregated", "aggregated"])
def test_a_pinned_budget_releases_no_gpu(mode: DynamoMode, begin: dict[Role, int]) -> None:
    policy = Dynamo(
        pool="p", speed=SPEED, slo=SLO, begin=begin, least_workers=6, most_workers=6, mode=mode, throughput_seconds=60.0
    )
    result = simulate(STEPS, make_cluster(SPEED, start_seconds=0.0), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == len(STEPS)
    assert min(sample.pods for sample in result.fleet) >= 5, "the planner tolerates one worker less than its floor"
    assert result.fleet[-1].pods >= 5


@pytest.mark.parametrize("mode", list(DynamoMode))
def test_aggregated_workers_follow_the_load(mode: DynamoMode) -> None:
    policy = Dynamo(
        pool="p",
        speed=SPEED,
        slo=SLO,
        begin={M: 1},
        least_workers=1,
        most_workers=8,
        mode=mode,
        throughput_seconds=60.0,
    )
    result = simulate(STEPS, make_cluster(SPEED, start_seconds=10.0), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == len(STEPS)
    assert all(sample.prefill == sample.decode == 0 for sample in result.fleet)
    busiest = max(result.fleet, key=lambda sample: sample.pods)
    assert busiest.pods > 1
    assert 200 < busiest.seconds < 460
    assert result.fleet[-1].pods < busiest.pods


def test_a_worker_without_room_starts_as_soon_as_another_one_is_gone() -> None:
    """A decision stands: on fixed GPUs a new role waits until a deleted worker is idle, not for the next decision."""
    load = stream(rate=ladder([(400, 6)]), lengths=LONG_PROMPTS, seconds=400, seed=1)
    policy = Dynamo(
        pool="p", speed=SPEED, slo=SLO, begin={P: 2, D: 4}, least_workers=6, most_workers=6, throughput_seconds=100.0
    )
    result = simulate(load, make_cluster(SPEED, start_seconds=0.0), policy, slo=SLO)
    given = next(sample.seconds for sample in result.fleet if sample.decode < 4)
    taken = next(sample.seconds for sample in result.fleet if sample.prefill > 2)
    assert given < taken
    assert given // 100 == taken // 100, "before the next decision"


def test_an_aggregated_worker_carries_less_than_both_halves() -> None:
    """What a mixed worker serves lies between nothing and what prefill alone, or decode alone, could do."""
    split, mixed = (
        Expectation(speed=SPEED, times=StepTimes(SPEED), slo=SLO, mixed=each, isl_tokens=1000, osl_tokens=200).rates()
        for each in (False, True)
    )
    assert 0 < mixed[0] < min(split)
