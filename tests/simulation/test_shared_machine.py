"""Workers that slow each other down: in closed form where there is one, and against engines that take every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.reference_engine import ReferenceEngine
from tests.simulation.reference_engine import Sequence as Slow
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, Kill
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.shared_machine import SharedMachine
from fulcrum.simulation.simulated_gateway import Chosen
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.timeline import Timeline
from fulcrum.simulation.view import View

FLAT = make_speed(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.0, 0.0))
"""1 ms per prompt token, 10 ms per step."""


class InTurn(Policy):
    """Whole requests, the first to the first worker, the second to the second, and so on."""

    def __init__(self, workers: int) -> None:
        self.name = "in turn"
        self._workers = workers

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return [(pool.name, Role.MIXED) for pool in cluster.pools for _ in range(self._workers)]

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen:
        worker = view.workers[request.index % self._workers]
        return Chosen(worker, worker)


def test_two_that_begin_together() -> None:
    load = make_workload([(0.0, 100, 1), (0.0, 300, 1)])
    result = simulate(load, make_cluster(FLAT, crowding=0.5), InTurn(2), slo=SLO)
    # Both take 1.5 times as long until the first is through; what is left of the second it does alone.
    assert result.end_seconds.tolist() == pytest.approx([0.15, 0.15 + 0.2])


def test_one_that_comes_in_the_middle_of_another_ones_run() -> None:
    load = make_workload([(0.0, 100, 101), (0.5, 100, 1)])
    result = simulate(load, make_cluster(FLAT, crowding=0.25), InTurn(2), slo=SLO)
    # The second is there for 125 ms, in which the first does 100 ms of its 1,100.
    assert result.end_seconds.tolist() == pytest.approx([1.1 + 0.025, 0.5 + 0.125])
    assert result.ttft_seconds.tolist() == pytest.approx([0.1, 0.125])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_alike(workers: int) -> None:
    load = make_workload([(0.0, 100, 11)] * workers)
    result = simulate(load, make_cluster(FLAT, crowding=0.1), InTurn(workers), slo=SLO)
    assert result.end_seconds.tolist() == pytest.approx([0.2 * (1 + 0.1 * (workers - 1))] * workers)


def test_one_that_dies_slows_nobody_down() -> None:
    load = make_workload([(0.0, 1000, 1), (0.0, 1000, 1)])
    cluster = make_cluster(FLAT, crowding=0.5, restart=False, max_attempts=1)
    result = simulate(load, cluster, InTurn(2), slo=SLO, kills=[Kill(at_seconds=0.3, worker="sim-p-1")])
    assert result.end_seconds[0] == pytest.approx(0.3 + 0.8)


def test_a_worker_that_waits_for_kv_slows_nobody_down() -> None:
    load = make_workload([(0.0, 100, 11), (5.0, 100, 11)])
    alone = simulate(load, make_cluster(FLAT), StaticSplit(pool="p", prefill=1, decode=1), slo=SLO)
    crowded = simulate(load, make_cluster(FLAT, crowding=0.5), StaticSplit(pool="p", prefill=1, decode=1), slo=SLO)
    np.testing.assert_allclose(crowded.end_seconds, alone.end_seconds, rtol=1e-12)
    np.testing.assert_allclose(crowded.ttft_seconds, alone.ttft_seconds, rtol=1e-12)


def test_crowding_is_no_speed_up() -> None:
    with pytest.raises(ValueError, match="crowding"):
        make_cluster(crowding=-0.1)


def test_whoever_leaves_twice_or_was_never_there_changes_nothing() -> None:
    machine, worker = SharedMachine(0.5, Timeline()), _Worker()
    machine.leave(worker, 1.0)
    machine.plan(1.0, worker, 1.0)
    machine.leave(worker, 2.0)
    machine.leave(worker, 3.0)
    assert machine.clock(4.0) == 4.0
    assert worker.event == -1


class _Worker:
    event = 0

    def fire(self, now: float) -> None: ...


@settings(max_examples=100, deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=24).map(
        sorted
    ),
    workers=st.integers(1, 4),
    crowding=st.floats(0.01, 1.0),
    max_batch=st.integers(1, 6),
    kv_blocks=st.integers(33, 300),
)
def test_equals_engines_that_take_every_step(
    requests: list[tuple[float, int, int]], workers: int, crowding: float, max_batch: int, kv_blocks: int
) -> None:
    speed = make_speed(kv_capacity_tokens=kv_blocks * 16, max_batch=max_batch, max_batched_tokens=512)
    result = simulate(make_workload(requests), make_cluster(speed, crowding=crowding), InTurn(workers), slo=SLO)
    slow = stepped(requests, speed, workers, crowding)
    np.testing.assert_allclose(result.end_seconds, [each.end for each in slow], rtol=1e-9)
    first = result.workload.arrival_seconds + result.ttft_seconds
    np.testing.assert_allclose(first, [each.first for each in slow], rtol=1e-9)


def stepped(requests: list[tuple[float, int, int]], speed: WorkerSpeed, workers: int, crowding: float) -> list[Slow]:
    """All engines step by step: who computes does so at one pace until the next step of any ends, or somebody comes."""
    every = [Slow(index, *request, context=request[1]) for index, request in enumerate(requests)]
    coming = list(every)
    engines = [ReferenceEngine(speed) for _ in range(workers)]
    left: dict[int, float] = {}  # seconds of the step under way, alone
    now = 0.0
    while coming or left:
        pace = 1 + crowding * max(0, len(left) - 1)
        ends = min(left, key=lambda each: left[each]) if left else -1
        end = now + left[ends] * pace if left else float("inf")
        until = min(end, max(now, coming[0].arrival_seconds)) if coming else end
        for each in left:
            left[each] -= (until - now) / pace
        now = until
        if ends >= 0 and now == end:
            del left[ends]
            engines[ends].now = now
            engines[ends].end_step()
        while coming and coming[0].arrival_seconds <= now:
            engines[coming[0].index % workers].waiting.append(coming.pop(0))
        for number, engine in enumerate(engines):
            while number not in left and (engine.waiting or engine.running):
                if seconds := engine.begin_step():
                    left[number] = seconds
                else:
                    engine.end_step()
    return every
