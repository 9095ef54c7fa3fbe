"""All workers of a cluster as one gateway (or the simulator) knows them, kept up to date event by event. Pure.

A request: `start` -> `prefill_done` -> any number of `progress` -> `finish`, from any stage. A worker: `put`, `remove`,
`set_speed`, `report`, `failed`, `worked`. `tick` now and then lets time-outs pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing.affinity import AffinityMemory
from fulcrum.routing.breaker import BreakerState
from fulcrum.routing.flight import DECODING, ENDED, PREFILLING, Flight
from fulcrum.routing.lanes import Lane, PoolRule, make_lanes
from fulcrum.routing.outliers import Outliers
from fulcrum.routing.path import Incoming, Route
from fulcrum.routing.timing import StepTimes
from fulcrum.routing.worker import WorkerView

DEFAULT_TTFT_SECONDS: Final = 2.0
DEFAULT_TPOT_SECONDS: Final = 0.1
_STALE_SECONDS: Final = 15.0
"""A report that was not followed by another says nothing any more."""
_USUAL_PROMPT_TOKENS: Final = 1000.0
_USUAL_RATE: Final = 0.01
_TURNS: Final = 10_000
"""Requests are numbered up to this one, so that the order among equals never weighs anything."""


class ClusterView:
    """Workers, what is under way on them, and who holds which prefix."""

    def __init__(
        self,
        *,
        class_names: Sequence[str] = ("default",),
        ranks: Sequence[int] = (),
        ttft_seconds: float = DEFAULT_TTFT_SECONDS,
        tpot_seconds: float = DEFAULT_TPOT_SECONDS,
        affinity: AffinityMemory | None = None,
        units_per_token: float = 4.0,
    ) -> None:
        self.class_names = tuple(class_names)
        self.ranks = tuple(ranks) or (0,) * len(self.class_names)
        """By class: in which order engines prefill what waits; 0 comes first. Default: first come, first served."""
        self.ttft_seconds = ttft_seconds
        self.tpot_seconds = tpot_seconds
        # Not `or`: a memory that is empty is false.
        self.affinity = AffinityMemory() if affinity is None else affinity
        self.units_per_token = units_per_token
        """Units of the affinity memory per token, as a guess of how much of them a KV cache holds."""
        self.workers: dict[str, WorkerView] = {}
        self.by_index: dict[int, WorkerView] = {}
        self.lanes: tuple[Lane, ...] = ()
        """Workers that may get requests, by revision."""
        self.fallback_lanes: tuple[Lane, ...] = ()
        """The same with suspects, when there are any: for requests that nobody else can take."""
        self.broken: Mapping[str, frozenset[str]] = {}
        """Decode workers that cannot pull KV from a prefill worker, by the name of that one."""
        self.unpaired: frozenset[str] = frozenset()
        """Prefill workers from which no decode worker of their revision can pull KV."""
        self.trials = False
        """Some breaker is half open: the next request on its worker is the trial."""
        self.prefill_workers = 1
        self.decode_workers = 1
        """Workers that do this kind of work, at least 1."""
        self.prefill_use = [0.0] * len(self.class_names)
        """Seconds of queued prefill, by class."""
        self.decode_use = [0.0] * len(self.class_names)
        """Shares of the longest decode steps that are promised or in use, by class."""
        self.mean_prompt_tokens = _USUAL_PROMPT_TOKENS
        self.usual_ttft_seconds = 0.0
        """Predicted, the mean of those started lately, at most as promised. All hand-overs are predicted for so long
        after the arrival: if each were for its own time, long prompts would get the room that others leave until then,
        and shorter ones that come later none."""
        self.step_limit_seconds = 0.0
        """Predicted decode step up to which admission lets requests in now; 0 where it does not predict."""
        self._pools: frozenset[str] = frozenset()
        """Those that the cluster has, with or without workers."""
        self._admits: Mapping[str, PoolAdmits] = {}
        self._speeds: dict[str, WorkerSpeed] = {}
        self._outliers = Outliers()
        self.steps = StepTimes()
        """How long the workers' steps took, for whoever keeps their speeds up to date."""
        self._by_node: dict[str, list[WorkerView]] = {}
        """Workers of each node that has several; those of which no node is known are left out."""
        self._joined = 0
        self._host_tokens: dict[int, float] = {}
        """By number of the worker: tokens whose KV fits in its host memory."""
        self._turns = 0

    @property
    def idle(self) -> bool:
        """Nothing is on any worker, as far as is known."""
        return all(worker.idle for worker in self.workers.values())

    @property
    def every_lane(self) -> tuple[Lane, ...]:
        """Lanes with all workers in a role, suspects included."""
        return self.fallback_lanes or self.lanes

    # Workers.

    def put(
        self, name: str, role: Role, *, pool: str = "", revision: str = "", node: str = "", incarnation: str = ""
    ) -> WorkerView:
        """A worker is usable, or changed; another `incarnation` is another process, which knows nothing of the old."""
        worker = self.workers.get(name)
        if worker is not None and (worker.pool, worker.revision, worker.node, worker.incarnation) != (
            pool, revision, node, incarnation,
        ):  # fmt: skip
            self._forget(worker)
            worker = None
        if worker is None:
            self._joined += 1
            worker = WorkerView(
                index=self._joined, name=name, role=role, pool=pool, revision=revision, node=node, ranks=self.ranks
            )
            worker.incarnation = incarnation
            worker.set_speed(self._speeds.get(pool))
            self.workers[name] = self.by_index[worker.index] = worker
            self._make_room(worker)
        worker.take_role(role)
        self._rebuild()
        return worker

    def remove(self, name: str) -> None:
        """A worker gets no more requests; what is under way on it finishes."""
        worker = self.workers.pop(name, None)
        if worker is not None:
            self._forget(worker)
            self._rebuild()

    def set_pools(self, admits: Mapping[str, PoolAdmits | None]) -> None:
        """All pools, and which requests each takes; one that is not named, or None, takes every one."""
        self._pools = frozenset(admits)
        self._admits = {pool: rule for pool, rule in admits.items() if rule is not None}
        self._rebuild()

    def set_broken(self, broken: Mapping[str, frozenset[str]]) -> None:
        """Pairs that cannot move KV (`broken`): no request is sent over them in two legs."""
        if self.broken != broken:
            self.broken = broken
            self._rebuild()

    def may_pair(self, one: WorkerView, other: WorkerView) -> bool:
        """Whether a request may ever go over both: of one revision, and with requests that both pools admit."""
        if one is other or one.revision != other.revision:
            return False
        rules = [PoolRule(self._admits.get(worker.pool), 0.0, self.class_names) for worker in (one, other)]
        shortest = max(rule.min_prompt_tokens for rule in rules)
        longest = min(rule.longest_tokens for rule in rules)
        classes = [rule.classes for rule in rules if rule.classes is not None]
        return shortest <= longest and (len(classes) < len(rules) or bool(classes[0] & classes[1]))

    def any_pool_takes(self, prompt_tokens: float, qos: int) -> bool:
        """Whether any pool takes such a request, once it has a worker to spare."""
        for pool in self._pools.union(worker.pool for worker in self.workers.values()):
            speed = self._speeds.get(pool)
            capacity = float(speed.kv_capacity_tokens) if speed is not None else 0.0
            if PoolRule(self._admits.get(pool), capacity, self.class_names).admits(prompt_tokens, qos):
                return True
        return False

    def set_speed(self, pool: str, speed: WorkerSpeed) -> None:
        """How fast the workers of `pool` are."""
        if self._speeds.get(pool) == speed:
            return
        self._speeds[pool] = speed
        for worker in self.workers.values():
            if worker.pool == pool:
                worker.set_speed(speed)
                self._make_room(worker)
        self._rebuild()

    def served(self, flight: Flight, *, ttft_seconds: float | None, tpot_seconds: float | None) -> None:
        """A request was served; outliers are told by a sample of all. Leave out what is not known."""
        found = flight.route
        if ttft_seconds is not None:
            self._outliers.observe(flight.prefill, ttft_seconds, found.ttft_seconds)
        if tpot_seconds is not None:
            self._outliers.observe(flight.decode, tpot_seconds, found.tpot_seconds)

    def failed(self, worker: WorkerView, now_seconds: float) -> None:
        """A request failed on `worker` in a way that is the worker's fault."""
        self._outliers.failed(worker)
        before = worker.breaker.available
        worker.breaker.failed(now_seconds)
        self._moved(worker, before)

    def worked(self, worker: WorkerView) -> None:
        """`worker` answered a request."""
        worker.answered += 1
        if not worker.breaker.spotless:
            before = worker.breaker.available
            worker.breaker.worked()
            self._moved(worker, before)

    def eject(self, worker: WorkerView, now_seconds: float, seconds: float) -> None:
        """`worker` is an outlier: leave it alone for a while."""
        before = worker.breaker.available
        worker.breaker.eject(now_seconds, seconds)
        self._moved(worker, before)

    def tick(self, now_seconds: float) -> list[WorkerView]:
        """Time went by: call it a few times a second. Workers that are left alone from now on, as outliers."""
        moved = False
        for worker in self.workers.values():
            if worker.answered:
                self._outliers.answered(worker, worker.answered)
                worker.answered = 0
            if not worker.breaker.available:
                worker.breaker.tick(now_seconds)
                moved = moved or worker.breaker.available
            if worker.foreign and now_seconds - worker.reported_at > _STALE_SECONDS:
                worker.set_foreign(now_seconds, seconds=0.0, running=0.0, context_tokens=0.0, share=0.0)
        if moved:
            self._rebuild()
        found = self._outliers.find(list(self.workers.values()))
        for worker, seconds in found:
            self.eject(worker, now_seconds, seconds)
        return [worker for worker, _ in found]

    def report(self, name: str, load: LoadReport, now_seconds: float) -> None:
        """A worker's own report: what it has beyond what was started here came from other gateways."""
        worker = self.workers.get(name)
        if worker is None:
            return
        host_tokens = float((load.offload.host_tokens or 0) if load.offload is not None else 0)
        if host_tokens != self._host_tokens.get(worker.index, 0.0):
            self._host_tokens[worker.index] = host_tokens
            self._make_room(worker)
        if load.running is None or load.waiting is None:
            return
        beyond = max(load.running + load.waiting - worker.in_flight, 0)
        decoding = 0.0
        if worker.role is Role.DECODE:
            decoding = float(beyond)
        elif worker.role is Role.MIXED:
            # What waits has not been prefilled, whoever sent it.
            decoding = float(min(beyond, max(load.running - worker.running, 0)))
        tokens = (beyond - decoding) * self.mean_prompt_tokens
        if load.queued_prompt_tokens is not None and worker.role is not Role.DECODE:
            tokens = max(load.queued_prompt_tokens - worker.queued_tokens, tokens if load.queued_prompt_tokens else 0.0)
        mean = worker.context_tokens / worker.running if worker.running else self.mean_prompt_tokens
        context = decoding * mean
        if decoding and load.kv_usage is not None and worker.kv_capacity:
            context = max(load.kv_usage * worker.kv_capacity - worker.context_tokens, 0.0)
        worker.set_foreign(
            now_seconds,
            seconds=worker.work_seconds(tokens, 0.0) if tokens else 0.0,
            running=decoding,
            context_tokens=context,
            share=decoding * decode_share(worker, context / decoding, 0.0, self.tpot_seconds) if decoding else 0.0,
        )

    def busy_neighbours(self, worker: WorkerView) -> int:
        """Other workers on the node of `worker` that have something to do, as far as is known."""
        return sum(not other.idle for other in self._by_node.get(worker.node, ()) if other is not worker)

    # Requests.

    def start(self, incoming: Incoming, route: Route, now_seconds: float) -> Flight:
        """The request is sent on its way."""
        flight = Flight(incoming, route, now_seconds)
        prefill, decode = flight.prefill, flight.decode
        flight.step_limit_seconds = self.step_limit_seconds
        flight.busy_neighbours = self.busy_neighbours(prefill)
        flight.share = decode_share(decode, incoming.prompt_tokens, incoming.output_tokens, self.tpot_seconds)
        if not prefill.legs:
            self.steps.starts(prefill, now_seconds)
        turn = self._next_turn()
        prefill.queue(flight, now_seconds, turn)
        decode.promise(flight, turn)
        self.prefill_use[flight.qos] += flight.work_seconds
        flight.step_share = step_share(decode, incoming.prompt_tokens, incoming.output_tokens, self.tpot_seconds)
        self.decode_use[flight.qos] += flight.step_share
        self.mean_prompt_tokens += _USUAL_RATE * (incoming.prompt_tokens - self.mean_prompt_tokens)
        rate = _USUAL_RATE if self.usual_ttft_seconds else 1.0
        self.usual_ttft_seconds += rate * (min(route.ttft_seconds, self.ttft_seconds) - self.usual_ttft_seconds)
        if self.trials:
            self._taken(prefill, now_seconds)
            self._taken(decode, now_seconds)
        if flight.prefix:
            new = (incoming.prompt_tokens - route.cached_tokens) * incoming.units_per_token
            self.affinity.record(flight.prefix, prefill.index, new)
        return flight

    def prefill_done(self, flight: Flight, now_seconds: float, *, prompt_tokens: float | None = None) -> None:
        """The prefill leg was answered, or the first token of a whole request came; with `prompt_tokens` if known."""
        if flight.phase != PREFILLING:
            return
        flight.phase = DECODING
        decode = flight.decode
        self.steps.answered(flight, now_seconds)
        flight.prefill.unqueue(flight, now_seconds, done=True)
        self._unuse_prefill(flight)
        decode.unpromise(flight)
        if prompt_tokens is not None:
            flight.prompt_tokens = prompt_tokens
        decode.join(flight, now_seconds)
        if flight.prefix and decode is not flight.prefill:
            # The KV that it pulled stays with it, too.
            held = self.affinity.held(flight.prefix, decode.index)
            new = max(flight.prompt_tokens * self.units_per_token - held, 0.0)
            self.affinity.record(flight.prefix, decode.index, new)

    def progress(self, flight: Flight, output_tokens: float, now_seconds: float) -> None:
        """Optional: the request has made `output_tokens` so far. Without it, progress is what the model says."""
        if flight.phase == DECODING:
            flight.decode.progress(flight, output_tokens, now_seconds)

    def finish(self, flight: Flight, now_seconds: float) -> None:
        """The request is over, for whatever cause and from any stage; a second time does nothing."""
        if flight.phase == ENDED:
            return
        decode = flight.decode
        if flight.phase == PREFILLING:
            self.steps.broken_off(flight.prefill, now_seconds)
            flight.prefill.unqueue(flight, now_seconds, done=False)
            self._unuse_prefill(flight)
            decode.unpromise(flight)
        else:
            decode.leave(flight, now_seconds)
        flight.phase = ENDED
        decode.release(flight)
        self.decode_use[flight.qos] = max(self.decode_use[flight.qos] - flight.step_share, 0.0)

    def _next_turn(self) -> int:
        if self._turns == _TURNS:
            self._turns = 0
            for worker in self.workers.values():
                worker.take_turn(0)
        self._turns += 1
        return self._turns

    def _unuse_prefill(self, flight: Flight) -> None:
        self.prefill_use[flight.qos] = max(self.prefill_use[flight.qos] - flight.work_seconds, 0.0)

    def _taken(self, worker: WorkerView, now_seconds: float) -> None:
        before = worker.breaker.available
        worker.breaker.taken(now_seconds)
        self._moved(worker, before)

    def _moved(self, worker: WorkerView, before: bool) -> None:
        if worker.breaker.available != before:
            self._rebuild()

    def _make_room(self, worker: WorkerView) -> None:
        # What left the device for host memory comes back in a fraction of the time that computing takes.
        capacity = (worker.kv_capacity or 1e6) + self._host_tokens.get(worker.index, 0.0)
        self.affinity.join(worker.index, capacity * self.units_per_token)

    def _forget(self, worker: WorkerView) -> None:
        self.by_index.pop(worker.index, None)
        self._outliers.forget(worker)
        self.steps.forget(worker)
        self.affinity.leave(worker.index)
        self._host_tokens.pop(worker.index, None)

    def _rebuild(self) -> None:
        workers = self.workers.values()
        self.lanes = make_lanes((one for one in workers if one.breaker.available), self._admits, self.class_names)
        self.trials = any(one.breaker.state is BreakerState.HALF_OPEN for one in workers)
        self.fallback_lanes = ()
        if any(not one.breaker.available for one in workers):
            self.fallback_lanes = make_lanes(workers, self._admits, self.class_names, suspect=True)
        self.unpaired = frozenset(self._unpaired()) if self.broken else frozenset()
        by_node: dict[str, list[WorkerView]] = {}
        for one in workers:
            if one.node:
                by_node.setdefault(one.node, []).append(one)
        self._by_node = {node: there for node, there in by_node.items() if len(there) > 1}
        roles = [one.role for one in workers]
        mixed = roles.count(Role.MIXED)
        self.prefill_workers = max(roles.count(Role.PREFILL) + mixed, 1)
        self.decode_workers = max(roles.count(Role.DECODE) + mixed, 1)

    def _unpaired(self) -> Iterator[str]:
        for lane in self.every_lane:
            decodes = {worker.name for group in lane.decode for worker in group.workers}
            for group in lane.prefill:
                yield from (one.name for one in group.workers if decodes <= self.broken.get(one.name, frozenset()))


def step_share(worker: WorkerView, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
    """Part of the longest decode step of a worker that a request takes, 0 to 1."""
    room = tpot_seconds - worker.decode_a
    share = (worker.decode_b + worker.decode_c * (prompt_tokens + output_tokens / 2)) / room if room > 0 else 1.0
    return share if share < 1 else 1.0


def decode_share(worker: WorkerView, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
    """Part of a decode worker that a request takes: of its step, its batch or its KV cache, whichever is most."""
    share = max(step_share(worker, prompt_tokens, output_tokens, tpot_seconds), 1 / worker.max_batch)
    if worker.kv_capacity:
        share = max(share, (prompt_tokens + output_tokens / 2) / worker.kv_capacity)
    return share if share < 1 else 1.0
