"""Workers with ranks of data parallel: the ranks take each step together, and each has its own KV, queue and batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.reference_engine import ReferenceEngine
from tests.simulation.reference_engine import Sequence as Slow
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload, poisson

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.rollout import DeleteWorker, SetRole
from fulcrum.simulation.cluster import ClusterModel, Kill, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.load_report import load_report
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Aggregated, StaticSplit
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policy import Policy, TickResult, known_speeds
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View

FLAT = make_speed(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.0, 1e-5))
"""1 ms per prompt token; 10 ms per step and 10 us for each token of context."""


def groups(ranks: int, speed: WorkerSpeed = FLAT, **others: object) -> ClusterModel:
    cluster = make_cluster(speed)
    (pool,) = cluster.pools
    return replace(cluster, pools=(replace(pool, ranks=ranks),), **others)


class ByRank(Policy):
    """One worker; whole requests, each to the rank that is named for it."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.name = "by rank"
        self._ranks = ranks

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return [("p", Role.MIXED)]

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen:
        worker = view.workers[self._ranks[request.index]]
        assert (worker.dp_rank or 0) == self._ranks[request.index]
        return Chosen(worker, worker)


def in_lockstep(speed: WorkerSpeed, requests: list[tuple[float, int, int]], ranks: list[int], count: int) -> list[Slow]:
    """Engines that take every step together, one step at a time."""
    engines = [ReferenceEngine(speed) for _ in range(count)]
    every = [Slow(number, *request) for number, request in enumerate(requests)]
    for each in every:
        each.context = each.prompt
    coming, now = list(zip(every, ranks, strict=True)), 0.0
    while coming or any(engine.running or engine.waiting for engine in engines):
        if not any(engine.running or engine.waiting for engine in engines):
            now = max(now, coming[0][0].arrival_seconds)
        while coming and coming[0][0].arrival_seconds <= now:
            each, rank = coming.pop(0)
            engines[rank].waiting.append(each)
        now += max(engine.begin_step() for engine in engines)
        for engine in engines:
            engine.now = now
            engine.end_step()
    return every


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.floats(0, 3), st.integers(1, 400), st.integers(1, 120)), min_size=1, max_size=24
    ).map(sorted),
    count=st.sampled_from([1, 2, 3, 8]),
    seed=st.integers(0, 1000),
    kv_capacity_tokens=st.integers(33, 300).map(lambda blocks: blocks * 16),
    max_batch=st.integers(1, 12),
    max_batched_tokens=st.integers(13, 600),
)
def test_equals_engines_that_take_each_step_together(
    *,
    requests: list[tuple[float, int, int]],
    count: int,
    seed: int,
    kv_capacity_tokens: int,
    max_batch: int,
    max_batched_tokens: int,
) -> None:
    speed = make_speed(
        decode=(0.01, 1e-3, 2e-5), kv_capacity_tokens=kv_capacity_tokens, max_batch=max_batch,
        max_batched_tokens=max_batched_tokens,
    )  # fmt: skip
    ranks = [int(each) for each in np.random.default_rng(seed).integers(0, count, len(requests))]
    slow = in_lockstep(speed, requests, ranks, count)
    result = simulate(make_workload(requests), groups(count, speed), ByRank(ranks), slo=SLO)
    np.testing.assert_allclose(result.end_seconds, [each.end for each in slow], rtol=1e-9)
    first = result.workload.arrival_seconds + result.ttft_seconds
    np.testing.assert_allclose(first, [each.first for each in slow], rtol=1e-9)


def test_the_slowest_rank_sets_the_step() -> None:
    load = make_workload([(0.0, 100, 11), (0.0, 1000, 11)])
    result = simulate(load, groups(2), ByRank([0, 1]), slo=SLO)
    # The first step takes the second's 1,000 tokens of prompt, the others its context.
    steps = sum(0.01 + 1e-5 * (1001 + number) for number in range(10))
    assert result.ttft_seconds.tolist() == pytest.approx([1.0, 1.0])
    assert result.end_seconds.tolist() == pytest.approx([1.0 + steps] * 2)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_idle_ranks_take_empty_steps_and_gain_nothing(ranks: int) -> None:
    load = make_workload([(0.0, 700, 50), (0.1, 90, 200), (2.0, 30, 30)])
    alone = simulate(load, groups(1), ByRank([0] * 3), slo=SLO)
    result = simulate(load, groups(ranks), ByRank([ranks - 1] * 3), slo=SLO)
    assert result.end_seconds.tolist() == alone.end_seconds.tolist()
    assert result.ttft_seconds.tolist() == alone.ttft_seconds.tolist()


def test_a_long_decode_on_several_ranks_is_a_handful_of_events() -> None:
    """The rank that is slowest at first is overtaken once by another, whose steps grow faster."""
    load = make_workload([(0.0, 4000, 20_000), *[(0.0, 10, 20_000)] * 3])
    result = simulate(load, groups(2), ByRank([0, 1, 1, 1]), slo=SLO)
    assert result.events <= 12


def test_each_rank_has_its_own_kv_cache() -> None:
    speed = make_speed(kv_capacity_tokens=160)
    load = make_workload([(0.0, 100, 40)] * 4)
    one = simulate(load, groups(1, speed), ByRank([0] * 4), slo=SLO)
    four = simulate(load, groups(4, speed), ByRank([0, 1, 2, 3]), slo=SLO)
    assert len(set(one.ttft_seconds.tolist())) == 4, "one after the other"
    assert len(set(four.ttft_seconds.tolist())) == 1, "all at once"


class Seen(StaticSplit):
    """Notes which ranks requests went to, and what the workers report."""

    def __init__(self, prefill: int, decode: int) -> None:
        super().__init__(pool="p", prefill=prefill, decode=decode)
        self.used: Counter[str] = Counter()
        self.most = 0

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        if request.decode is not None:
            self.used[request.decode.name] += 1
        for pod in view.pods:
            report = load_report(pod)
            assert report.ranks is not None
            assert report.running == sum(rank.running or 0 for rank in report.ranks if rank is not None)
            assert report.kv_capacity_tokens == 4 * FLAT.kv_capacity_tokens
            self.most = max(self.most, report.running or 0)


def test_the_production_router_spreads_over_ranks() -> None:
    load = poisson(rate=20.0, count=400, prompt=100.0, output=50.0, seed=3)
    policy = Seen(1, 1)
    result = simulate(load, groups(4, gateways=2, poll_seconds=0.25), policy, slo=SLO)
    assert (result.outcome == Outcome.SERVED).all()
    used = {name: count for name, count in policy.used.items() if name.startswith("sim-p-1/")}
    assert set(used) == {f"sim-p-1/dp{rank}" for rank in range(4)}
    assert max(used.values()) < 2 * min(used.values())
    assert policy.most > 8, "the report is of all ranks"
    assert {(sample.prefill, sample.decode, sample.pods) for sample in result.fleet} == {(1, 1, 2)}


class Predicted(SimulatedGateway):
    """Notes what was predicted of each request, and what became of it."""

    def __init__(self, slo: LatencyTargets, cluster: ClusterModel) -> None:
        super().__init__(slo=slo, speeds=known_speeds(cluster))
        self.seconds: list[tuple[float, float, float, float, float]] = []
        """Arrival, TTFT predicted and simulated, TPOT predicted and simulated."""

    def ended(self, request: SimulatedRequest, now: float, *, served: bool) -> None:
        flight, first = self._flights[request.index], request.first_token_seconds
        if request.output > 1:
            pace = (now - first) / (request.output - 1)
            self.seconds.append(
                (
                    request.arrival_seconds,
                    flight.load.ttft_seconds,
                    first - request.arrival_seconds,
                    flight.route.tpot_seconds,
                    pace,
                )
            )
        super().ended(request, now, served=served)


class Predicting(Fixed):
    """Keeps its gateway."""

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> Predicted:
        self.gateway = Predicted(slo, cluster)
        return self.gateway


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    ("roles", "rate"), [((Role.PREFILL, Role.DECODE), 5.0), ((Role.MIXED, Role.MIXED), 2.5)], ids=["1P:1D", "2M"]
)
def test_what_is_predicted_is_simulated(ranks: int, roles: tuple[Role, ...], rate: float) -> None:
    """Means within 15 %. Were ranks taken for workers, first tokens would take up to 2.7 times as long, answers 4."""
    speed = make_speed(prefill=(0.02, 4e-5, 1e-9), decode=(0.015, 1e-4, 5e-8), kv_capacity_tokens=400_000)
    load = poisson(rate=rate * ranks, count=max(500, 180 * ranks), prompt=1500.0, output=150.0, seed=7, spread=0.8)
    policy = Predicting([("p", role) for role in roles])
    simulate(
        load, groups(ranks, speed), policy, slo=LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.06, attainment=0.95)
    )
    # From when on it is known how often prompts come.
    told = np.array([row for at, *row in policy.gateway.seconds if at > 25.0]).mean(axis=0)
    assert told[1] == pytest.approx(told[0], rel=0.15)
    assert told[3] == pytest.approx(told[2], rel=0.15)


def test_requests_of_a_worker_that_dies_go_on_with_another_one() -> None:
    load = make_workload([(0.01 * number, 500, 20) for number in range(16)])
    result = simulate(
        load, groups(4), Aggregated(pool="p", workers=2), slo=SLO, kills=[Kill(at_seconds=0.3, worker="sim-p-0")]
    )
    assert (result.outcome == Outcome.SERVED).all()


class Once(Aggregated):
    """Does one thing to the first worker at second 1."""

    def __init__(self, action: str) -> None:
        super().__init__(pool="p", workers=2)
        self._action = action
        self.seen: list[tuple[float, Role]] = []

    def on_tick(self, view: View) -> TickResult:
        (first, *_) = view.pods
        if view.now < 1.0:
            return TickResult(again_seconds=1.0 - view.now)
        if self._action == "flip":
            to = SetRole(name=first.name, uid=first.uid, from_role=Role.MIXED, role=Role.DECODE, epoch=1)
            return TickResult(actions=[to])
        return TickResult(actions=[DeleteWorker(name=first.name, uid=first.uid, reason=Reason.WORKER_REMOVED)])


@pytest.mark.parametrize("action", ["flip", "delete"])
def test_a_flip_or_a_drain_of_a_worker_is_of_all_its_ranks_and_loses_nothing(action: str) -> None:
    load = make_workload([(0.05 * number, 200, 60) for number in range(60)])
    result = simulate(load, groups(4), Once(action), slo=SLO)
    assert (result.outcome == Outcome.SERVED).all()
    last = result.fleet[-1]
    assert (last.decode, last.mixed, last.pods) == ((1, 1, 2) if action == "flip" else (0, 1, 1))


def test_a_worker_has_a_rank_at_least() -> None:
    with pytest.raises(ValueError, match="ranks"):
        ClusterModel(pools=(PoolModel(name="p", speed=FLAT, ranks=0),))
