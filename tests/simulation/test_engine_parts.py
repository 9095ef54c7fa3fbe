"""The parts of the simulated cluster, each by itself: KV before tokens, links, prefix cache, starts and flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload, poisson

from fulcrum.api.names import Role
from fulcrum.rollout import Action, CreateWorker, SetRole, StartDrain
from fulcrum.simulation.cluster import ClusterModel, FirstToken, Kill, Links, Pulling, Sharing
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.prefix_cache import PrefixCache
from fulcrum.simulation.simulated_request import Leg, SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rate=st.floats(1, 40),
    first_token=st.sampled_from(FirstToken),
    sharing=st.sampled_from(Sharing),
    pulling=st.sampled_from(Pulling),
    layers=st.sampled_from([0, 40]),
    blocks=st.integers(120, 600),
)
@example(
    seed=9804,
    rate=1.0,
    first_token=FirstToken.DECODE,
    sharing=Sharing.SERIAL,
    pulling=Pulling.BESIDE,
    layers=0,
    blocks=120,
)  # a request that never fits
def test_no_token_comes_before_its_kv(
    *, seed: int, rate: float, first_token: FirstToken, sharing: Sharing, pulling: Pulling, layers: int, blocks: int
) -> None:
    speed = make_speed(kv_capacity_tokens=blocks * 16, max_batch=8)
    links = Links(
        sharing=sharing,
        pulling=pulling,
        bytes_per_second=1e8,
        kv_bytes_per_token=1e4,
        latency_seconds=0.002,
        overlapped_layers=layers,
    )
    load = poisson(rate=rate, count=120, prompt=300, output=20, seed=seed)
    came: dict[int, float] = {}
    whole: set[int] = set()
    loaded, submit = SimulatedWorker.loaded, SimulatedWorker.submit

    def noted(self: SimulatedWorker, request: SimulatedRequest, now: float) -> None:
        came[request.index] = now
        loaded(self, request, now)

    def sent(self: SimulatedWorker, request: SimulatedRequest, now: float) -> None:
        if request.leg is Leg.WHOLE:
            whole.add(request.index)
        submit(self, request, now)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SimulatedWorker, "loaded", noted)
        monkeypatch.setattr(SimulatedWorker, "submit", sent)
        cluster = make_cluster(speed, links=links, first_token=first_token)
        result = simulate(load, cluster, StaticSplit(pool="p", prefill=2, decode=2), slo=SLO)
    # About one load in 200 has a request that no worker has room for.
    fits = load.prompt_tokens + load.output_tokens <= speed.kv_capacity_tokens
    assert ((result.outcome == Outcome.SERVED) == fits).all()
    step_seconds = speed.decode_step_seconds(1, 1)
    for index in np.flatnonzero(fits).tolist():
        prompt, output = int(load.prompt_tokens[index]), int(load.output_tokens[index])
        arrived, ended = float(load.arrival_seconds[index]), float(result.end_seconds[index])
        first = arrived + float(result.ttft_seconds[index])
        prefilled = arrived + speed.prefill_seconds(prompt, prompt**2)
        assert first >= prefilled - 1e-9
        if index not in came:
            # Its one token came with the prefill, or the decode worker computed it: from the start, or after all.
            assert output == 1 or index in whole or result.computed_tokens[index] > prompt
            continue
        assert came[index] >= prefilled - 1e-9
        after = output if first_token is FirstToken.DECODE else output - 1
        assert ended >= came[index] + after * step_seconds - 1e-9
        if first_token is FirstToken.DECODE:
            assert first >= came[index] + step_seconds - 1e-9


def test_links_are_shared_in_turn_or_not_at_all() -> None:
    load = make_workload([(0.0, 1000, 1), (0.0, 1000, 1)])
    split = StaticSplit(pool="p", prefill=2, decode=1)
    speed = make_speed(prefill=(0.01, 1e-7, 0.0), decode=(1e-9, 0.0, 0.0))
    alone = 0.01 + 1e-4 + 0.1

    def ttft(sharing: Sharing) -> list[float]:
        links = Links(sharing=sharing, bytes_per_second=1e6, kv_bytes_per_token=100.0)
        return sorted(simulate(load, make_cluster(speed, links=links), split, slo=SLO).ttft_seconds.tolist())

    # Two senders and one receiver: its link is taken by one after the other.
    assert ttft(Sharing.SERIAL) == pytest.approx([alone, alone + 0.1], abs=1e-4)
    assert ttft(Sharing.PARALLEL) == pytest.approx([alone, alone], abs=1e-4)


def paces(pulling: Pulling, sharing: Sharing = Sharing.SERIAL) -> list[float]:
    """TPOT of a request that decodes, and of two that are prefilled meanwhile, and handed over at the same moment."""
    load = make_workload([(0.0, 100, 101), (0.503, 100, 3), (0.503, 100, 3)])
    # A prefill takes 10 ms whatever comes, a decode step 10 ms, a transfer 25 ms of latency and 10 ms of the link.
    speed = make_speed(prefill=(0.01, 0.0, 0.0), decode=(0.01, 0.0, 0.0))
    links = Links(
        pulling=pulling, sharing=sharing, bytes_per_second=1e6, kv_bytes_per_token=100.0, latency_seconds=0.025
    )
    cluster = make_cluster(speed, links=links, first_token=FirstToken.PREFILL)
    result = simulate(load, cluster, StaticSplit(pool="p", prefill=1, decode=1), slo=SLO)
    return [float(each) for each in result.tpot_seconds]


# The first begins to decode at 45 ms, with steps that begin at 5 ms past every ten; the others are prefilled at 513 ms,
# so that they are pulled from 515 ms on.


def test_kv_that_is_pulled_beside_the_steps_does_not_hold_them_up() -> None:
    steady, *pulled = paces(Pulling.BESIDE)
    assert steady == pytest.approx((0.035 + 100 * 0.01) / 100)
    # There at 550 and 560 ms, in the middle of a step: they join at 555 and 565 ms.
    assert pulled == pytest.approx([(0.042 + 2 * 0.01) / 2, (0.052 + 2 * 0.01) / 2])


def test_kv_that_is_pulled_between_the_steps_holds_them_up() -> None:
    steady, *pulled = paces(Pulling.BETWEEN)
    # One after the other with the latency of each, until 585 ms; then both join the next step.
    assert steady == pytest.approx((0.035 + 0.07 + 100 * 0.01) / 100)
    assert pulled == pytest.approx([(0.072 + 2 * 0.01) / 2] * 2)


def test_pulls_between_the_steps_over_parallel_links_take_as_long_as_one() -> None:
    steady, *pulled = paces(Pulling.BETWEEN, Sharing.PARALLEL)
    assert steady == pytest.approx((0.035 + 0.035 + 100 * 0.01) / 100)
    assert pulled == pytest.approx([(0.037 + 2 * 0.01) / 2] * 2)


def test_what_is_pulled_between_the_steps_keeps_to_the_batch() -> None:
    """With room for two in a step, the third is pulled when one of them is done."""
    speed = make_speed(prefill=(0.01, 0.0, 0.0), decode=(0.01, 0.0, 0.0), max_batch=2)
    links = Links(pulling=Pulling.BETWEEN, bytes_per_second=1e6, kv_bytes_per_token=100.0)
    cluster = make_cluster(speed, links=links, first_token=FirstToken.PREFILL)
    load = make_workload([(0.0, 100, 11), (0.0, 100, 21), (0.0, 100, 11)])
    # Nobody is late, and so nobody stays on the prefill worker.
    slo = replace(SLO, ttft_seconds=10.0)
    result = simulate(load, cluster, StaticSplit(pool="p", prefill=1, decode=1), slo=slo)
    # Prefilled at 10 ms, pulled by 30 ms, ten steps together, 10 ms for the third, which then takes its own ten.
    assert result.end_seconds.tolist() == pytest.approx([0.13, 0.24, 0.24])


class Cache:
    """A prefix cache by the book: what is in use stays, and of the rest the longest idle goes first."""

    def __init__(self) -> None:
        self.uses: dict[int, int] = {}
        self.idle: list[int] = []

    def pin(self, ids: Sequence[int]) -> None:
        for each in ids:
            if each in self.idle:
                self.idle.remove(each)
            self.uses[each] = self.uses.get(each, 0) + 1

    def unpin(self, ids: Sequence[int]) -> None:
        for each in reversed(ids):
            self.uses[each] -= 1
            if not self.uses[each]:
                del self.uses[each]
                self.idle.append(each)

    def evict(self, room: int) -> None:
        while len(self.idle) > room:
            self.idle.pop(0)

    def hits(self, ids: Sequence[int]) -> int:
        known = [each in self.uses or each in self.idle for each in ids]
        return known.index(False) if False in known else len(known)


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=30),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 29), st.integers(0, 12)), max_size=60),
)
def test_the_prefix_cache_forgets_the_longest_idle_and_nothing_in_use(
    prompts: list[tuple[int, int]], steps: list[tuple[bool, int, int]]
) -> None:
    blocks = 4
    cache, book = PrefixCache(blocks), Cache()
    pinned: list[tuple[int, ...]] = []
    for begin, which, room in steps:
        if begin or not pinned:
            family, length = prompts[which % len(prompts)]
            # Prompts of a family share their beginning and differ in their last block.
            ids = (*(family * 100 + n for n in range(length - 1)), family * 100 + 50 + length)
            assert cache.unpinned_blocks(ids, len(ids)) == blocks * sum(each not in book.uses for each in ids)
            cache.pin(ids, len(ids))
            book.pin(ids)
            pinned.append(ids)
        else:
            ids = pinned.pop(which % len(pinned))
            cache.unpin(ids, len(ids))
            book.unpin(ids)
        cache.evict(room * blocks)
        book.evict(room)
        for family in range(3):
            wanted = tuple(family * 100 + n for n in range(6))
            assert cache.hits(wanted, 6) == book.hits(wanted)


@dataclass
class Told(StaticSplit):
    """Carries out these actions at their times, and notes where requests are sent."""

    plan: list[tuple[float, Action]] = field(default_factory=list)
    sent: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(pool="p", prefill=1, decode=1)

    def on_tick(self, view: View) -> TickResult:
        due = [action for at, action in self.plan if at <= view.now]
        self.plan = [(at, action) for at, action in self.plan if at > view.now]
        return TickResult(actions=due, again_seconds=self.plan[0][0] - view.now if self.plan else None)

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        assert request.decode is not None
        self.sent[request.index] = request.decode.name


def steady(seconds: float, *, gap: float, prompt: int = 100, output: int = 20) -> list[tuple[float, int, int]]:
    return [(n * gap, prompt, output) for n in range(round(seconds / gap))]


def test_a_new_worker_serves_from_the_end_of_its_start_on() -> None:
    create = CreateWorker(pool="p", name="sim-p-2", ordinal=2, role=Role.DECODE)
    policy = Told(plan=[(10.0, create)])
    load = make_workload(steady(60.0, gap=0.05))
    result = simulate(load, make_cluster(start_seconds=20.0), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == len(load)
    there = [sample.seconds for sample in result.fleet if sample.decode == 2]
    assert there[0] == pytest.approx(30.0)
    used = [load.arrival_seconds[index] for index, decode in policy.sent.items() if decode == "sim-p-2"]
    assert 30.0 <= min(used) < 31.0
    # A Pod takes its GPU from its creation on.
    assert result.gpu_seconds == pytest.approx(3 * result.end_of_run_seconds - 10.0)


def test_a_killed_worker_is_back_after_its_start() -> None:
    load = make_workload(steady(40.0, gap=0.1))
    kills = [Kill(at_seconds=10.0, worker="sim-p-0")]
    result = simulate(
        load, make_cluster(start_seconds=15.0), StaticSplit(pool="p", prefill=2, decode=1), slo=SLO, kills=kills
    )
    ready = {sample.seconds: sample.prefill for sample in result.fleet}
    assert ready == {0.0: 2, 10.0: 1, 25.0: 2}
    assert result.count(Outcome.SERVED) == len(load), "the other prefill worker takes over"


@pytest.mark.parametrize("drain", [False, True], ids=["Immediate", "Drain"])
def test_flip_styles(*, drain: bool) -> None:
    """Decode worker 2 becomes a prefill worker with work on it: at once, or when it has none left."""
    long = [(9.0, 100, 1000)] * 4  # about ten seconds of decoding
    load = make_workload(sorted([*steady(30.0, gap=0.25), *long]))
    create = CreateWorker(pool="p", name="sim-p-2", ordinal=2, role=Role.DECODE)
    became: list[float] = []

    class Flips(Told):
        def on_tick(self, view: View) -> TickResult:
            pod = next((pod for pod in view.pods if pod.name == "sim-p-2"), None)
            actions = list(super().on_tick(view).actions)
            if pod is not None and view.now >= 10.0 and pod.role is not Role.PREFILL:
                if drain and pod.role is Role.DECODE:
                    actions.append(StartDrain(name=pod.name, uid=pod.uid, from_role=Role.DECODE, epoch=1))
                elif not drain or (pod.ranks and pod.ranks[0].idle and not pod.ranks[0].in_flight):
                    became.append(view.now)
                    role = SetRole(
                        name=pod.name, uid=pod.uid, from_role=pod.role, role=Role.PREFILL, epoch=pod.epoch + 1
                    )
                    actions.append(role)
            return TickResult(actions=actions, again_seconds=0.1)

    policy = Flips(plan=[(0.0, create)])
    result = simulate(load, make_cluster(start_seconds=1.0, flip_seconds=0.1), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == len(load), "a flip loses nothing"
    assert result.flips == 1
    prefills = [sample.seconds for sample in result.fleet if sample.prefill == 2]
    assert prefills[0] == pytest.approx(became[0] + 0.1)
    if drain:
        assert became[0] > 15.0, "there was work on it"
    else:
        assert became[0] == pytest.approx(10.0, abs=0.11)
    late = [
        index for index, decode in policy.sent.items() if decode == "sim-p-2" and load.arrival_seconds[index] > 10.2
    ]
    assert not late, "nothing new of its old role"
    # The long answers that it had went on at the pace of decoding, whatever it is called.
    answers = np.flatnonzero(load.output_tokens == 1000)
    assert float(result.tpot_seconds[answers].max()) < 0.02


def test_kv_is_held_for_as_long_as_its_decode_worker_is_full() -> None:
    """A decode engine renews the lease of what waits in it: nothing is computed twice, though it waits for minutes."""
    speed = make_speed(kv_capacity_tokens=6000, max_batch=1)
    cluster: ClusterModel = make_cluster(speed)
    load = make_workload([(0.0, 1500, 4000), (0.0, 1500, 4000), (0.1, 1500, 300)])
    result = simulate(load, cluster, StaticSplit(pool="p", prefill=1, decode=1), slo=SLO)
    assert result.count(Outcome.SERVED) == 3
    assert result.ttft_seconds[2] > 30
    assert result.computed_tokens[2] == 1500


def test_a_decode_worker_that_never_gets_its_kv_computes_it() -> None:
    """The lease runs out while the decode worker is full; nothing is lost, and the blocks are free again."""
    speed = make_speed(kv_capacity_tokens=4000, max_batch=4)
    cluster: ClusterModel = make_cluster(speed, lease_seconds=0.5)
    load = make_workload([(0.0, 1500, 300), (0.0, 1500, 300), (0.1, 1500, 300)])
    result = simulate(load, cluster, StaticSplit(pool="p", prefill=1, decode=1), slo=SLO)
    assert result.count(Outcome.SERVED) == 3
    assert sorted(result.computed_tokens.tolist()) == [1500, 1500, 3000]
