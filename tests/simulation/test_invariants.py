"""What must hold in every run: nothing is lost, nothing comes before its cause, the same seed gives the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload, poisson

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, ClassMatch, QosClass
from fulcrum.api.worker import DecodePoint
from fulcrum.capacity.kv import TransferCost
from fulcrum.load.demand import LatencyTargets
from fulcrum.rollout import SetRole, StartDrain
from fulcrum.simulation import engine
from fulcrum.simulation.cluster import ClusterModel, FirstToken, Kill, Links, PoolModel
from fulcrum.simulation.kv_tiers import KvTiers
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Aggregated, StaticSplit
from fulcrum.simulation.policy import Policy, TickResult, known_speeds
from fulcrum.simulation.result import Result
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.steps import WorkerSteps
from fulcrum.simulation.traffic import load_trace
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker
from fulcrum.simulation.workload import Workload

MOONCAKE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
CLASSES = (
    QosClass(name="premium", priority=100, reserved=0.2, match=ClassMatch(header="x-tier", value="premium")),
    QosClass(name="free", priority=10),
)


TIERS = (
    None,
    *(
        KvTiers(
            host_tokens=host,
            pool_tokens=pool,
            host_link=TransferCost(base_seconds=0.001, seconds_per_token=host_seconds),
            pool_link=TransferCost(base_seconds=0.002, seconds_per_token=4e-5),
            front=front,
        )
        for host, pool, host_seconds, front in (
            (4096, 0, 1e-6, True),
            (4096, 0, 4e-5, True),
            (0, 8192, 1e-6, True),
            (2048, 8192, 4e-5, True),
            (2048, 8192, 4e-5, False),
        )
    ),
)
"""Links that are quick, and ones that take as long as computing."""


class Restless(Policy):
    """Flips a random worker every second, in either style, and never empties a role for good."""

    name = "restless"

    def __init__(self, *, workers: int, seed: int, admission: AdmissionPolicy = AdmissionPolicy.OFF) -> None:
        self._workers = workers
        self._admission = admission
        self._random = np.random.default_rng(seed)

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        return SimulatedGateway(slo=slo, speeds=known_speeds(cluster), policy=self._admission, classes=CLASSES)

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return [("p", Role.PREFILL if n % 2 else Role.DECODE) for n in range(self._workers)]

    def on_tick(self, view: View) -> TickResult:
        pod = view.pods[int(self._random.integers(len(view.pods)))]
        if pod.role is Role.DRAINING or self._random.random() < 0.7:
            role = (Role.PREFILL, Role.DECODE, Role.MIXED)[int(self._random.integers(3))]
            action: Any = SetRole(name=pod.name, uid=pod.uid, from_role=pod.role, role=role, epoch=pod.epoch + 1)
        else:
            action = StartDrain(name=pod.name, uid=pod.uid, from_role=pod.role, epoch=pod.epoch + 1)
        return TickResult(actions=[action], again_seconds=1.0)


def check(result: Result) -> None:
    load = result.workload
    served = result.outcome == Outcome.SERVED
    rejected, failed = result.count(Outcome.REJECTED), result.count(Outcome.FAILED)
    assert len(load) == int(served.sum()) + rejected + failed, "arrived = served + rejected + failed"
    assert np.all(result.ttft_seconds[served] > 0)
    first = load.arrival_seconds[served] + result.ttft_seconds[served]
    assert np.all(result.end_seconds[served] >= first - 1e-9)
    several = served & (load.output_tokens > 1)
    assert np.all(result.tpot_seconds[several] > 0)
    if load.prefix_ids is None:
        assert np.all(result.computed_tokens[served] >= load.prompt_tokens[served])


def watched(monkeypatch: pytest.MonkeyPatch) -> list[SimulatedWorker]:
    """Check every worker at every step of the simulation; returns the workers."""
    workers: list[SimulatedWorker] = []
    fire = WorkerSteps.fire
    loaded = SimulatedWorker.loaded

    def checked_fire(self: WorkerSteps, now: float) -> None:
        fire(self, now)
        for rank in self.ranks:
            assert isinstance(rank, SimulatedWorker)
            if rank not in workers:
                workers.append(rank)
            assert 0 <= rank.kv_used_blocks <= rank.kv_capacity_blocks, "KV never above capacity"
            assert rank.running <= rank.speed.max_batch
            assert rank.queued_tokens >= 0

    def checked_loaded(self: SimulatedWorker, request: SimulatedRequest, now: float) -> None:
        assert request.first_token_seconds < 0 or request.first_token_seconds <= now
        assert request.arrival_seconds < now, "no token before its KV"
        loaded(self, request, now)

    monkeypatch.setattr(WorkerSteps, "fire", checked_fire)
    monkeypatch.setattr(SimulatedWorker, "loaded", checked_loaded)
    return workers


def check_idle(workers: list[SimulatedWorker]) -> None:
    """Everything that was taken has been given back."""
    for worker in workers:
        if not worker.stopped:
            assert worker.idle
            assert (worker.kv_used_blocks, worker.held_blocks, worker.queued_tokens, worker.batch) == (0, 0, 0, 0)
            assert (worker.prefill_legs, worker.decode_legs, worker.context_tokens) == (0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    workers=st.integers(2, 6),
    rate=st.floats(0.5, 60),
    blocks=st.integers(70, 500),
    first_token=st.sampled_from(FirstToken),
    kills=st.lists(st.tuples(st.floats(0, 20), st.integers(0, 5)), max_size=4),
    leg_seconds=st.sampled_from([0.0, 0.01]),
    shared=st.booleans(),
    tiers=st.sampled_from(TIERS),
    admission=st.sampled_from(AdmissionPolicy),
    ranks=st.sampled_from([1, 1, 2, 5]),
)
def test_nothing_is_lost_under_flips_drains_and_kills(
    *,
    seed: int,
    workers: int,
    rate: float,
    blocks: int,
    first_token: FirstToken,
    kills: list[tuple[float, int]],
    leg_seconds: float,
    shared: bool,
    tiers: KvTiers | None,
    admission: AdmissionPolicy,
    ranks: int,
) -> None:
    load = poisson(rate=rate, count=150, prompt=300, output=40, seed=seed, spread=0.6)
    load = with_classes(with_limits(load, blocks * 16 // 2), seed)
    if shared:
        load = with_prefixes(load, seed)
    cluster = make_cluster(
        make_speed(kv_capacity_tokens=blocks * 16, max_batch=8, max_batched_tokens=512, transfer_base_seconds=0.005),
        first_token=first_token,
        leg_seconds=leg_seconds,
        start_seconds=5.0,
        lease_seconds=2.0,
        kv_tiers=tiers,
    )
    cluster = replace(cluster, pools=(replace(cluster.pools[0], ranks=ranks),))
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = watched(monkeypatch)
        result = engine.simulate(
            load,
            cluster,
            Restless(workers=workers, seed=seed, admission=admission),
            slo=SLO,
            kills=[Kill(at_seconds=at, worker=f"sim-p-{n}") for at, n in kills],
        )
    check(result)
    check_idle(seen)
    if not kills:
        assert result.count(Outcome.FAILED) == 0, "a flip loses nothing"


def with_limits(load: Workload, tokens: int) -> Workload:
    """Cut lengths so that each request fits into the KV cache of a worker."""
    return make_workload(
        [
            (arrival, min(prompt, tokens), min(output, tokens))
            for arrival, prompt, output in zip(
                load.arrival_seconds.tolist(), load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True
            )
        ]
    )


def with_classes(load: Workload, seed: int) -> Workload:
    """Make a third of the requests premium."""
    premium = np.random.default_rng(seed).random(len(load)) < 1 / 3
    return replace(load, qos_class=premium.astype(np.int16), classes=("free", "premium"))


def with_prefixes(load: Workload, seed: int) -> Workload:
    """Give each prompt a leading part that some others share, with lengths around the blocks of 512 tokens."""
    random = np.random.default_rng(seed)
    prompts = np.minimum(load.prompt_tokens * 3, load.prompt_tokens.max()).astype(np.int32)
    ids = tuple(
        tuple(int(group) * 100 + n for n in range(-(-int(prompt) // 512)))
        for prompt, group in zip(prompts, random.integers(0, 4, len(load)), strict=True)
    )
    return replace(load, prompt_tokens=prompts, prefix_ids=ids)


@pytest.mark.parametrize("policy", ["static", "aggregated", "restless", "classes"])
def test_the_same_input_gives_the_same_result(policy: str) -> None:
    def run() -> Result:
        chosen: Policy = {
            "static": StaticSplit(pool="p", prefill=2, decode=2),
            "aggregated": Aggregated(pool="p", workers=4),
            "restless": Restless(workers=4, seed=3),
            "classes": Restless(workers=4, seed=3, admission=AdmissionPolicy.PREDICTIVE),
        }[policy]
        load = poisson(rate=20, count=500, prompt=600, output=80, seed=5)
        if policy == "classes":
            load = with_classes(load, 5)
        return engine.simulate(load, make_cluster(), chosen, slo=SLO)

    one, two = run(), run()
    for column in ("ttft_seconds", "tpot_seconds", "end_seconds", "outcome", "computed_tokens"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))
    assert (one.events, one.flips, one.gpu_seconds, one.fleet) == (two.events, two.flips, two.gpu_seconds, two.fleet)


def test_two_legs_add_up() -> None:
    speed = make_speed(transfer_base_seconds=0.003, transfer_seconds_per_token=1e-5)
    load = make_workload([(1.0, 1000, 11)])
    prefill = 0.01 + 1000 * 4e-5 + 1e6 * 1e-9
    transfer = 0.003 + 1000 * 1e-5
    split = StaticSplit(pool="p", prefill=1, decode=1)
    result = engine.simulate(load, make_cluster(speed), split, slo=SLO)
    # The decode worker computes the last prompt token again: its first step has a context of 1000.
    steps = [0.0101 + 5e-8 * (1000 + n) for n in range(11)]
    assert result.ttft_seconds[0] == pytest.approx(prefill + transfer + steps[0], rel=1e-9)
    assert result.tpot_seconds[0] == pytest.approx(sum(steps[1:]) / 10, rel=1e-9)
    result = engine.simulate(load, make_cluster(speed, first_token=FirstToken.PREFILL), split, slo=SLO)
    assert result.ttft_seconds[0] == pytest.approx(prefill, rel=1e-9)
    steps = [0.0101 + 5e-8 * (1001 + n) for n in range(10)]
    assert result.tpot_seconds[0] == pytest.approx((transfer + sum(steps)) / 10, rel=1e-9)


def test_steps_are_those_of_the_curve() -> None:
    small = make_speed(decode=(0.02, 0.0, 0.0))
    curve = [DecodePoint(batch=n, seconds=0.02 if n < 3 else 0.05, seconds_per_token=0.0) for n in (1, 2, 3, 9)]
    coefficients = msgspec.structs.replace(small.coefficients, decode_curve=tuple(curve))
    speed = replace(small, coefficients=coefficients)
    pools = (PoolModel(name="a", speed=make_speed(), gpus_per_worker=2), PoolModel(name="b", speed=speed))
    split = StaticSplit(pool="a", prefill=1, decode=1, decode_pool="b")
    for count, pace in ((2, 0.02), (4, 0.05)):
        load = make_workload([(0.0, 10, 101)] * count)
        result = engine.simulate(load, ClusterModel(pools=pools), split, slo=SLO)
        assert result.tpot_seconds == pytest.approx([pace] * count, rel=1e-9)
        assert result.gpu_seconds == pytest.approx(3 * result.end_of_run_seconds)


def test_links_are_taken_in_turn_and_overlap_hides_all_but_a_layer() -> None:
    load = make_workload([(0.0, 1000, 1), (0.0, 1000, 1)])
    split = StaticSplit(pool="p", prefill=1, decode=1)
    speed = make_speed(decode=(1e-9, 0.0, 0.0))
    prefill = speed.prefill_seconds(2000, 2e6)

    def ttft(links: Links) -> list[float]:
        return [float(t) for t in engine.simulate(load, make_cluster(speed, links=links), split, slo=SLO).ttft_seconds]

    wire: dict[str, Any] = {"bytes_per_second": 1e6, "kv_bytes_per_token": 100.0, "latency_seconds": 0.001}
    assert ttft(Links(**wire)) == pytest.approx([prefill + 0.101, prefill + 0.201], abs=1e-6)
    overlapped = ttft(Links(**wire, overlapped_layers=50))
    left = max(0.1 / 50, 0.1 - prefill)
    assert overlapped == pytest.approx([prefill + left + 0.001, prefill + 2 * left + 0.001], abs=1e-6)


def test_a_request_that_can_never_fit_is_rejected_and_the_others_go_on() -> None:
    speed = make_speed(kv_capacity_tokens=1600)
    load = make_workload([(0.0, 2000, 10), (0.0, 100, 10)])
    result = engine.simulate(load, make_cluster(speed), Aggregated(pool="p", workers=1), slo=SLO)
    assert list(result.outcome) == [Outcome.REJECTED, Outcome.SERVED]
    assert result.rejections == {Reason.NEVER_FITS: 1}


def test_a_killed_worker_costs_retries_before_the_first_token_and_failures_after_it() -> None:
    load = make_workload([(0.0, 100, 1000), (4.99, 20_000, 5)])
    result = engine.simulate(
        load,
        make_cluster(),
        StaticSplit(pool="p", prefill=2, decode=2),
        slo=SLO,
        kills=[Kill(at_seconds=5.0, worker=f"sim-p-{n}") for n in range(4)],
    )
    assert result.outcome[0] == Outcome.FAILED  # its stream had begun
    assert result.outcome[1] == Outcome.FAILED  # nobody is left for another attempt
    result = engine.simulate(
        load,
        make_cluster(),
        StaticSplit(pool="p", prefill=2, decode=2),
        slo=SLO,
        kills=[Kill(at_seconds=5.0, worker=f"sim-p-{n}") for n in (0, 1, 2)][1:2],
    )
    assert result.outcome[1] == Outcome.SERVED


def test_prefixes_are_computed_once_per_worker_and_evicted_when_room_is_needed() -> None:
    ids = ((1, 2, 3), (1, 2, 4), (1, 2, 3))
    load = make_workload([(0.0, 1536, 1), (1.0, 1536, 1), (2.0, 1536, 1)], prefix_ids=ids)
    roomy = engine.simulate(load, make_cluster(), Aggregated(pool="p", workers=1), slo=SLO)
    # The third prompt is cached as a whole, but its last token has to be computed.
    assert list(roomy.computed_tokens) == [1536, 512, 512]
    tight = make_speed(kv_capacity_tokens=1536 + 16)
    evicting = engine.simulate(load, make_cluster(tight), Aggregated(pool="p", workers=1), slo=SLO)
    assert list(evicting.computed_tokens) == [1536, 512, 512]
    other = make_workload(
        [(0.0, 1536, 1), (1.0, 1536, 1), (2.0, 1536, 1)], prefix_ids=((1, 2, 3), (7, 8, 9), (1, 2, 3))
    )
    assert list(
        engine.simulate(other, make_cluster(tight), Aggregated(pool="p", workers=1), slo=SLO).computed_tokens
    ) == [1536, 1536, 1536]


def test_a_higher_class_takes_the_place_of_waiting_lower_ones() -> None:
    load = with_classes(poisson(rate=30, count=1500, prompt=1500, output=20, seed=9), 9)
    policy = Restless(workers=2, seed=1, admission=AdmissionPolicy.PREDICTIVE)
    policy.on_tick = lambda _view: TickResult()  # type: ignore[method-assign]
    # Steps of a prompt or two, so that others wait, and can be overtaken.
    cluster = make_cluster(make_speed(max_batched_tokens=2048))
    result = engine.simulate(load, cluster, policy, slo=SLO)
    check(result)
    assert result.rejections.get(Reason.PREEMPTED, 0) > 0
    premium = load.qos_class == 1
    assert result.within(SLO)[premium].mean() > 1.5 * result.within(SLO)[~premium].mean()


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the trace is not here")
def test_an_endless_cache_hits_as_often_as_the_trace_repeats_itself() -> None:
    load = Workload.of(load_trace(MOONCAKE)).scaled(0.2)
    speed = make_speed(kv_capacity_tokens=10**9, max_batch=4096)
    result = engine.simulate(load, make_cluster(speed), Aggregated(pool="p", workers=1), slo=SLO)
    check(result)
    assert load.prefix_ids is not None
    seen: set[int] = set()
    hits = 0
    for ids, prompt in zip(load.prefix_ids, load.prompt_tokens.tolist(), strict=True):
        run = next((n for n, each in enumerate(ids) if each not in seen), len(ids))
        hits += min(run, (prompt - 1) // 512) * 512
        seen.update(ids[: prompt // 512])
    assert 0.3 < hits / load.prompt_tokens.sum() < 0.4
    assert result.computed_tokens.sum() == load.prompt_tokens.sum() - hits
