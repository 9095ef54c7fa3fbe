"""Advancing from change to change equals stepping: the same times, blocks and preemptions as a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.reference_engine import ReferenceEngine
from tests.simulation.worlds import SLO, Tiered, in_classes, make_cluster, make_speed, make_workload, qos_classes

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.workload import Workload

PRIORITIES = {"premium": 100, "free": 10, "trial": 10}
requests = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400), st.integers(1, 120)), min_size=1, max_size=30).map(
    sorted
)


@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    kv_capacity_tokens=st.integers(33, 300).map(lambda blocks: blocks * 16),
    max_batch=st.integers(1, 12),
    max_batched_tokens=st.integers(13, 600),
)
def test_equals_a_step_by_step_engine(
    requests: list[tuple[float, int, int]], kv_capacity_tokens: int, max_batch: int, max_batched_tokens: int
) -> None:
    speed = make_speed(
        kv_capacity_tokens=kv_capacity_tokens, max_batch=max_batch, max_batched_tokens=max_batched_tokens
    )
    compare(make_workload(requests), Aggregated(pool="p", workers=1), speed, [0] * len(requests))


@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    names=st.lists(st.sampled_from(list(PRIORITIES)), min_size=30, max_size=30),
    kv_capacity_tokens=st.integers(33, 300).map(lambda blocks: blocks * 16),
    max_batch=st.integers(1, 12),
    max_batched_tokens=st.integers(13, 600),
)
def test_equals_a_step_by_step_engine_that_serves_by_priority(
    requests: list[tuple[float, int, int]],
    names: list[str],
    kv_capacity_tokens: int,
    max_batch: int,
    max_batched_tokens: int,
) -> None:
    speed = make_speed(
        kv_capacity_tokens=kv_capacity_tokens, max_batch=max_batch, max_batched_tokens=max_batched_tokens
    )
    names = names[: len(requests)]
    policy = Tiered(Aggregated(pool="p", workers=1), qos_classes(**PRIORITIES))
    ranks = [-PRIORITIES[name] for name in names]
    compare(in_classes(make_workload(requests), names), policy, speed, ranks)


def compare(load: Workload, policy: Policy, speed: WorkerSpeed, ranks: list[int]) -> None:
    requests = list(
        zip(load.arrival_seconds.tolist(), load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True)
    )
    expected = ReferenceEngine(speed)
    slow = expected.run(requests, ranks)
    result = simulate(load, make_cluster(speed), policy, slo=SLO)
    assert result.preemptions == expected.preemptions
    np.testing.assert_allclose(result.end_seconds, [each.end for each in slow], rtol=1e-9)
    first = result.workload.arrival_seconds + result.ttft_seconds
    np.testing.assert_allclose(first, [each.first for each in slow], rtol=1e-9)
    assert result.events <= 3 * expected.steps + 3 * len(requests)
    assert expected.peak_blocks <= speed.kv_capacity_tokens // 16


def test_a_long_decode_is_a_handful_of_events() -> None:
    result = simulate(make_workload([(0.0, 100, 50_000)]), make_cluster(), Aggregated(pool="p", workers=1), slo=SLO)
    assert result.events <= 6
    # 49,999 steps of 10.1 ms + 50 ns per token of context, contexts 101, 102 ...
    steps, prefill = 49_999, 0.01 + 100 * 4e-5 + 100**2 * 1e-9
    expected = prefill + steps * 0.0101 + 5e-8 * (steps * 101 + steps * (steps - 1) / 2)
    assert result.end_seconds[0] == pytest.approx(expected, rel=1e-12)
