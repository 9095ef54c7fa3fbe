"""One request looking at the workers at one instant: what each of the few that can be best would mean for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fulcrum.api.names import Role
from fulcrum.routing.lanes import Group, Lane
from fulcrum.routing.latency import chunk_seconds, hand_over
from fulcrum.routing.path import HandOver, Incoming, Prefill, Route
from fulcrum.routing.worker import WorkerView

if TYPE_CHECKING:
    from fulcrum.routing.view import ClusterView

_WORK_WEIGHT: Final = 1.0
"""Prefill time taken from others, against waiting time of the request itself."""
_MISS: Final = 10.0
"""Score of missing a promise by as much again."""
_SUSPECT: Final = 1000.0
_PREFILL: Final = Role.PREFILL
_LEAST_LEFT_SECONDS: Final = 1e-3
"""Of a promise: latencies are divided by it."""
_FULLER: Final = 0.1
"""A worker on the same node is taken unless it is fuller by this share of a worker: KV stays off the network."""

_ALONE: Final = 0.2
"""Of its work: by so much longer a prompt waits elsewhere rather than hold up an answer on a prefill worker."""
_EARLY: Final = 0.7
"""It does so only where it is prefilled before this share of its TTFT promise: to step aside must not make it late."""
_TAKEN: Final = 0.8
"""Share of their time that the other prefill workers can give to prompts, so that one has time for an answer."""

_by_prefill: Final[Callable[[WorkerView], float]] = attrgetter("prefill_key")
_by_decode: Final[Callable[[WorkerView], float]] = attrgetter("decode_key")


class Search:
    """A request at an instant."""

    __slots__ = ("held", "held_tokens", "incoming", "now_seconds", "rank", "tpot_seconds", "ttft_seconds", "view")

    def __init__(self, incoming: Incoming, view: ClusterView, now_seconds: float) -> None:
        self.incoming = incoming
        self.view = view
        self.now_seconds = now_seconds
        self.rank = view.ranks[incoming.qos]
        ttft, tpot = incoming.ttft_seconds, incoming.tpot_seconds
        self.ttft_seconds = min(view.ttft_seconds, ttft)
        if incoming.waited_seconds:
            self.ttft_seconds = max(self.ttft_seconds - incoming.waited_seconds, _LEAST_LEFT_SECONDS)
        self.tpot_seconds = min(view.tpot_seconds, tpot)
        self.held: list[WorkerView] = []
        """Workers with the longest known prefix of the prompt."""
        self.held_tokens = 0.0
        if incoming.prefix:
            units, indices = view.affinity.match(incoming.prefix)
            if units:
                self.held_tokens = max(min(units / incoming.units_per_token, incoming.prompt_tokens - 1), 0.0)
                self.held = [worker for index in indices if (worker := view.by_index.get(index)) is not None]

    def allowed(self, group: Group) -> Sequence[WorkerView]:
        """Workers of a pool that may be taken."""
        incoming = self.incoming
        if not group.admits(incoming.prompt_tokens, incoming.qos):
            return ()
        exclude = incoming.exclude
        return [worker for worker in group.workers if worker.name not in exclude] if exclude else group.workers

    def cached(self, worker: WorkerView) -> float:
        """Prompt tokens that `worker` holds."""
        if not self.held:
            return 0.0
        if worker in self.held:
            return self.held_tokens
        units = self.view.affinity.held(self.incoming.prefix, worker.index)
        return min(units / self.incoming.units_per_token, self.held_tokens)

    def queued(self, worker: WorkerView) -> Prefill:
        """The prefill on `worker`."""
        prompt_tokens = self.incoming.prompt_tokens
        cached = self.cached(worker) if self.held else 0.0
        wait, begun, overtaken_tokens = 0.0, 0.0, 0.0
        if worker.legs or worker.foreign_seconds:
            overtaken = 0.0
            lower = worker.lower_seconds(self.rank)
            if lower > 0:
                for leg in worker.overtaken(self.rank):
                    overtaken += leg.work_seconds
                    overtaken_tokens += leg.new_tokens
                begun = max(lower - overtaken, 0.0)
            wait = worker.backlog_seconds(self.now_seconds, overtaken)
        work = worker.work_seconds(prompt_tokens, cached)
        own = worker.prefill_a + work - worker.spared_seconds(prompt_tokens - cached, overtaken_tokens)
        if worker.running or worker.foreign_running:
            wait += chunk_seconds(worker, prompt_tokens - cached)
        return Prefill(worker, cached, wait, begun, work, own, wait + (1 + _WORK_WEIGHT) * work)

    def prefill(self, groups: Sequence[Group], unpaired: frozenset[str] = frozenset()) -> Prefill | None:
        """The prefill that is done soonest, counting what it takes from others; not on those named in `unpaired`."""
        best: Prefill | None = None
        for group in groups:
            workers = self.allowed(group)
            if unpaired:
                workers = [worker for worker in workers if worker.name not in unpaired]
            if not workers:
                continue
            worker = min(workers, key=_by_prefill) if len(workers) > 1 else workers[0]
            if worker.legs and worker.overdue(self.now_seconds):
                # It hangs: its key cannot be believed, and so cannot those of others.
                worker = min(workers, key=lambda one: one.backlog_seconds(self.now_seconds))
            candidate = self.queued(worker)
            if worker.running and worker.role is _PREFILL:
                candidate = self._elsewhere(candidate, workers)
            if best is None or candidate.cost_seconds < best.cost_seconds:
                best = candidate
            for holder in self.held:
                if holder is not worker and holder in group.members and holder.name not in self.incoming.exclude:
                    if holder.name in unpaired:
                        continue
                    candidate = self.queued(holder)
                    if candidate.cost_seconds < best.cost_seconds:
                        best = candidate
        return best

    def _elsewhere(self, held_up: Prefill, workers: Sequence[WorkerView]) -> Prefill:
        """The same prompt on a worker where nobody decodes, if that is nearly as soon."""
        free = [worker for worker in workers if not worker.running]
        if not free:
            return held_up
        other = self.queued(min(free, key=_by_prefill))
        if other.wait_seconds + other.own_seconds > _EARLY * self.ttft_seconds:
            return held_up
        return other if other.cost_seconds < held_up.cost_seconds + _ALONE * held_up.work_seconds else held_up

    def calmest(self, groups: Sequence[Group]) -> WorkerView | None:
        """The worker with the least to decode."""
        best: WorkerView | None = None
        for group in groups:
            workers = self.allowed(group)
            if workers:
                worker = min(workers, key=_by_decode) if len(workers) > 1 else workers[0]
                if best is None or worker.decode_key < best.decode_key:
                    best = worker
        return best

    def calmest_holder(self, groups: Sequence[Group]) -> WorkerView | None:
        """Of the workers that hold the prompt's prefix, the one with the least to decode."""
        best: WorkerView | None = None
        for holder in self.held:
            if (best is None or holder.decode_key < best.decode_key) and holder.name not in self.incoming.exclude:
                for group in groups:
                    if holder in group.members and group.admits(self.incoming.prompt_tokens, self.incoming.qos):
                        best = holder
        return best

    def pair(self, prefill: Prefill, lane: Lane) -> Route | None:
        """The best decode worker for a prefill."""
        node = prefill.worker.node
        broken = self.view.broken.get(prefill.worker.name, ()) if self.view.broken else ()
        best: Route | None = None
        for group in lane.decode:
            workers = self.allowed(group)
            if broken:
                workers = [worker for worker in workers if worker.name not in broken]
            if not workers:
                continue
            worker = min(workers, key=_by_decode) if len(workers) > 1 else workers[0]
            if worker.node != node and node in group.by_node:
                near = min(group.by_node[node], key=_by_decode)
                usable = near.name not in self.incoming.exclude and near.name not in broken
                if usable and near.decode_key < worker.decode_key + _FULLER:
                    worker = near
            candidate = self._two_legs(prefill, worker, lane)
            if best is None or candidate.score < best.score:
                best = candidate
        return best

    def _two_legs(self, prefill: Prefill, decode: WorkerView, lane: Lane) -> Route:
        incoming, worker = self.incoming, prefill.worker
        transfer = worker.transfer_base + worker.transfer_per_token * incoming.prompt_tokens
        delay = prefill.wait_seconds + prefill.own_seconds + transfer
        there = hand_over(
            decode, self.now_seconds, self.view.usual_ttft_seconds, incoming.prompt_tokens, incoming.output_tokens
        )
        ttft = delay + there.slot_seconds + there.step_seconds
        if decode.running:
            # A busy engine begins to pull between two steps, and adds what it has pulled between two others.
            ttft += 0.5 * there.step_seconds + max(there.step_seconds - transfer, 0.0)
        if decode.legs:
            ttft += max(decode.backlog_seconds(self.now_seconds) - delay, 0.0)
        score = self._score(ttft, there, decode, prefill.work_seconds)
        return _route(prefill, decode, ttft, there, score + _SUSPECT * lane.suspect)

    def staying(self, prefill: Prefill, lane: Lane) -> Route:
        """Both legs on a prefill worker. Prompts leave it alone meanwhile, as far as the others can take them."""
        share, others = 0.0, -1
        for group in lane.prefill:
            for worker in self.allowed(group):
                share += worker.prefill_share(self.now_seconds)
                others += 1
        return self.whole(prefill, lane, max(share - _TAKEN * others, 0.0))

    def whole(self, prefill: Prefill, lane: Lane, prefill_share: float | None = None) -> Route:
        """Both legs on the worker of `prefill`; prompts of others take `prefill_share` of its time, or as they did."""
        incoming, worker = self.incoming, prefill.worker
        delay = prefill.wait_seconds + prefill.own_seconds
        there = hand_over(
            worker,
            self.now_seconds,
            self.view.usual_ttft_seconds,
            incoming.prompt_tokens,
            incoming.output_tokens,
            prefill_share=prefill_share,
        )
        if worker.running:
            # Its prefill stands between the steps of those that decode here.
            slower = there.step_seconds + prefill.work_seconds / worker.left_tokens
            there = HandOver(
                slower, there.tpot_seconds, there.kv_tokens, there.context_tokens, there.slot_seconds,
                there.own_step_seconds, there.life_seconds,
            )  # fmt: skip
        ttft = delay + there.slot_seconds
        score = self._score(ttft, there, worker, prefill.work_seconds)
        return _route(prefill, worker, ttft, there, score + _SUSPECT * lane.suspect)

    def _score(self, ttft: float, there: HandOver, decode: WorkerView, work: float) -> float:
        """Lower is better: both latencies in units of their promise, and much more for a promise that is missed."""
        ttft_part = ttft / self.ttft_seconds
        tpot_part = max(there.step_seconds, there.tpot_seconds) / self.tpot_seconds
        score = ttft_part + tpot_part + work / self.view.ttft_seconds
        if ttft_part > 1:
            score += _MISS * (ttft_part - 1)
        if tpot_part > 1:
            score += _MISS * (tpot_part - 1)
        if 0 < decode.kv_capacity < there.kv_tokens:
            score += _MISS * (there.kv_tokens / decode.kv_capacity - 1)
        return score


def _route(prefill: Prefill, decode: WorkerView, ttft_seconds: float, there: HandOver, score: float) -> Route:
    worker = prefill.worker
    return Route(
        worker,
        decode,
        prefill.cached_tokens,
        prefill.wait_seconds,
        prefill.begun_seconds,
        prefill.work_seconds,
        prefill.own_seconds,
        ttft_seconds,
        there,
        worker.known and decode.known,
        score,
    )
