"""What `benchmarks/recorded.py` sends, and when it says that a played recording came out otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from demo_load import PROMPTS_SPLIT, load_for, operator_seconds_of
from recorded import LATE, LEAST_REQUESTS, Figures, same_requests, traffic
from tests.benchmarks.demo_cluster import MEDIUM, QUICK, SLOW, SPEC

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.replay import Outcome, Record
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.traffic import Request
from fulcrum.simulation.workload import Workload

REAL = Figures(inside=0.7, ttft=(2.0, 8.0), tpot=(0.3, 0.4))


@pytest.mark.parametrize("speed", [SLOW, MEDIUM, QUICK], ids=["slow", "medium", "quick"])
def test_some_long_answers_are_late_and_some_are_not(speed: WorkerSpeed) -> None:
    load = load_for(speed, operator_seconds=operator_seconds_of(SPEC))
    requests, long_answers = traffic(load)
    assert len(requests) == len(long_answers) >= LEAST_REQUESTS
    prefill, decode = PROMPTS_SPLIT
    cluster = ClusterModel(pools=(PoolModel(name="cpu", speed=speed),), block_tokens=32)
    slo = LatencyTargets(ttft_seconds=load.slo.ttft_seconds, tpot_seconds=load.slo.tpot_seconds, attainment=0.95)
    policy = StaticSplit(pool="cpu", prefill=prefill, decode=decode)
    inside = simulate(Workload.of(requests), cluster, policy, slo=slo).within(slo)
    late = 1 - float(inside[np.array(long_answers)].mean())
    assert LATE[0] < late < LATE[1]


@pytest.mark.parametrize(
    ("played", "misses"),
    [
        (Figures(inside=0.74, ttft=(2.2, 7.0), tpot=(0.33, 0.36)), []),
        (Figures(inside=0.64, ttft=(2.0, 8.0), tpot=(0.3, 0.4)), ["inside the SLO -6.0 points"]),
        (Figures(inside=0.7, ttft=(2.4, 8.0), tpot=(0.3, 0.32)), ["TTFT p50 +20.0%", "TPOT p90 -20.0%"]),
    ],
)
def test_what_is_off_by_more_than_the_target(played: Figures, misses: list[str]) -> None:
    assert list(played.misses(REAL)) == misses


def record(due_seconds: float, output_tokens: int) -> Record:
    return Record(
        outcome=Outcome.OK,
        detail="",
        due_seconds=due_seconds,
        sent_seconds=due_seconds,
        first_token_seconds=due_seconds + 1,
        last_token_seconds=due_seconds + 2,
        end_seconds=due_seconds + 2,
        output_tokens=output_tokens,
    )


@pytest.mark.parametrize(
    ("answers", "problem"),
    [([3, 12], ""), ([3], "1 requests in the recording, 2 were sent"), ([3, 11], "other lengths")],
)
def test_a_recording_that_is_not_of_the_requests_that_were_sent(answers: list[int], problem: str) -> None:
    sent = [record(100.0, 3), record(101.5, 12)]
    trace = [
        Request(arrival_seconds=1.5 * index, prompt_tokens=32, output_tokens=tokens)
        for index, tokens in enumerate(answers)
    ]
    found = list(same_requests(sent, trace))
    assert [problem in each for each in found] == ([True] if problem else [])
