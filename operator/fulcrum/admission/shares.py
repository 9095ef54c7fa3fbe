"""How much of the cluster a class may fill: reserves and priority, without leaving room idle that no class asks for.

Two resources: prefill (a worker's queue may be as long as the TTFT promise) and decode (a worker's batch may be as
large as the TPOT promise and its KV cache allow). Of each, what other classes *ask for* is kept free for them: of a
class with a higher priority all of it, of any other up to its reserve. A class without requests keeps nothing, so
its reserve serves the others; when it comes back, room is given back as work finishes. A class below its own
reserve need only respect the reserves of others.

Engines prefill by priority, so that what waits of lower classes takes no room from a higher one
(`PrefillQueue.overtaken`). Room is kept for it all the same: a step that has begun is not interrupted, and so few have
to make way.
"""

from __future__ import annotations

from math import ceil, exp, inf, sqrt

from fulcrum.admission.classes import ClassTable
from fulcrum.admission.learnt import Learnt
from fulcrum.admission.tuning import TUNING
from fulcrum.routing import ClusterView, Incoming, RequestLoad, Route, WorkerView

Overtaken = tuple[list[tuple[RequestLoad, float]], list[RequestLoad]]
"""Requests that are served later, with their new TTFT in seconds; and those that make way."""


class _Demand:
    """Requests of one class that arrived, admitted or not; sums fade with `TUNING.demand_seconds`."""

    __slots__ = ("asked_at", "decode", "prefill", "requests", "shares")

    def __init__(self) -> None:
        self.asked_at = -inf
        self.requests = 0.0
        self.prefill = 0.0
        """Seconds of prefill."""
        self.shares = 0.0
        """Shares of a decode worker."""
        self.decode = 0.0
        """Seconds of decode workers (share times life)."""


class ClassShares:
    """Demand of each class, and the room that it leaves to the others."""

    def __init__(self, table: ClassTable, *, gateways: int = 1) -> None:
        self._table = table
        self.gateways = gateways
        """Gateways that split the traffic evenly: what one sees is its part of the whole."""
        self._demands = [_Demand() for _ in table.names]
        # By class: others that it may have to leave room for, their demand and reserve, and how far they rank above it.
        self._rivals = [
            [
                (other, demand, table.reserved[other], rank - table.ranks[other])
                for other, demand in enumerate(self._demands)
                if other != qos and (table.reserved[other] or table.ranks[other] < rank)
            ]
            for qos, rank in enumerate(table.ranks)
        ]
        self._began = 0.0
        self._faded_at: float | None = None

    def offered(self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float) -> None:
        """A request arrived, for which `found` is the best path."""
        if len(self._demands) < 2:
            return
        self._fade(now_seconds)
        demand = self._demands[incoming.qos]
        life_seconds = found.hand_over.step_seconds * incoming.output_tokens
        share = found.decode.engine.step_share_of(incoming.prompt_tokens, incoming.output_tokens, view.tpot_seconds)
        demand.asked_at = now_seconds
        demand.requests += 1
        demand.prefill += found.work_seconds
        demand.shares += share
        demand.decode += share * life_seconds

    def room(
        self, qos: int, found: Route, view: ClusterView, now_seconds: float, learnt: Learnt
    ) -> tuple[float, float]:
        """Parts of prefill and of decode, 0 to 1, that a request of class `qos` may see filled on its path; 1: all."""
        self._fade(now_seconds)
        since = now_seconds - TUNING.demand_seconds
        rivals = [rival for rival in self._rivals[qos] if rival[1].asked_at > since]
        if not rivals:
            return 1.0, 1.0
        gateways = self.gateways
        reserve = self._table.reserved[qos]
        # What the sums have to be multiplied with, to be per second and of all gateways.
        rate = gateways / min(TUNING.demand_seconds, max(now_seconds - self._began, 1.0))

        workers = max(len(view.workers.decoding), 1)
        capacity = workers / gateways
        due = view.decode_use[qos] < reserve * capacity
        decode = _Kept(workers)
        for other, demand, theirs, above in rivals:
            most = 1.0 if above > 0 and not due else theirs
            used = view.decode_use[other] / capacity
            size = demand.shares / demand.requests
            decode.keep(demand.decode * rate / workers, used, size, most)
        decode_room = 1.0 - decode.kept
        if decode.least_workers < workers:
            # More than the margin leaves is not filled at all, by whatever class.
            room = learnt.tpot_margin.allowed_seconds(1.0) - decode.kept
            if _with_room(view, room, decode.least_workers, besides=found.decode):
                decode_room = 1.0

        prefill_room = 1.0
        if found.wait_seconds > 0:  # where nothing is queued, there is room
            workers = max(len(view.workers.prefilling), 1)
            due = view.prefill_use[qos] < reserve * workers / gateways * view.ttft_seconds
            capacity = workers / gateways * view.ttft_seconds
            prefill = _Kept(workers)
            for other, demand, theirs, above in rivals:
                most = 1.0 if above > 0 and not due else theirs
                # What will be overtaken is not in the wait.
                used = 0.0 if above < 0 else view.prefill_use[other] / capacity
                size = demand.prefill / demand.requests / view.ttft_seconds
                prefill.keep(demand.prefill * rate / workers, used, size, most)
            # On every worker: a prompt waits where it is queued, and those of lower classes that have begun go on.
            prefill_room = 1.0 - prefill.kept
        return max(prefill_room, 0.0), max(decode_room, 0.0)

    def overtaken(self, incoming: Incoming, found: Route, view: ClusterView, learnt: Learnt) -> Overtaken | None:
        """Return which requests of lower classes are served later for it, as engines serve them after it, and which
        make way.

        Those that would be late make way, and so room for those behind them. None: one would be late whose class would
        then have less than what is reserved for it.
        """
        later: list[tuple[RequestLoad, float]] = []
        victims: list[RequestLoad] = []
        rank = view.ranks[incoming.qos]
        prompts = found.prefill.prompts
        if prompts.lower_seconds(rank) <= 0:
            return later, victims
        promise = learnt.ttft_seconds
        more_seconds = found.work_seconds
        less_seconds = [0.0] * len(learnt.ttft_margins)
        for leg in prompts.overtaken(rank):
            qos = leg.qos
            ttft_seconds = leg.ttft_seconds + more_seconds
            less = less_seconds[qos] + leg.work_seconds
            allowed = learnt.ttft_margins[qos].allowed_seconds(promise)
            if leg.batch:
                later.append((leg, ttft_seconds))
            elif leg.ttft_seconds <= allowed < ttft_seconds and self._above_reserve(qos, view, less):
                less_seconds[qos] = less
                more_seconds = max(more_seconds - leg.work_seconds, 0.0)
                victims.append(leg)
            elif leg.ttft_seconds <= promise < ttft_seconds:
                return None
            else:
                later.append((leg, ttft_seconds))
        return later, victims

    def _above_reserve(self, qos: int, view: ClusterView, less_seconds: float) -> bool:
        """Whether class `qos` would still have its reserve of prefill with `less_seconds` of its queue taken away."""
        reserved = self._table.reserved[qos]
        room = max(len(view.workers.prefilling), 1) * view.ttft_seconds / self.gateways
        return reserved <= 0 or view.prefill_use[qos] - less_seconds >= reserved * room

    def _fade(self, now_seconds: float) -> None:
        if self._faded_at is None:
            self._began = self._faded_at = now_seconds
        gone_seconds = now_seconds - self._faded_at
        if gone_seconds <= 0:
            return
        self._faded_at = now_seconds
        left = exp(-gone_seconds / TUNING.demand_seconds)
        for demand in self._demands:
            demand.requests *= left
            demand.prefill *= left
            demand.shares *= left
            demand.decode *= left


class _Kept:
    """What is kept free of one resource on so many workers, in parts of one of them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._asked = 0.0
        self.kept = 0.0
        """On a worker: never less than one usual request of each class, or none would fit."""

    def keep(self, asked: float, used: float, size: float, most: float) -> None:
        """Keep what a class asks for and does not have, at most `most` with what it has.

        What is asked for varies: a standard deviation (of the number of requests in service, a Poisson variable, of the
        usual `size`) is kept on top.
        """
        if used >= most:
            return
        asked = max(asked, used)
        asked += sqrt(asked * size / self._workers)
        more = min(most, asked) - used
        self.kept += max(size, more)
        self._asked += max(size / self._workers, more)

    @property
    def least_workers(self) -> int:
        """Return how many workers have to keep it, so that together they keep what classes ask for."""
        return ceil(self._workers * self._asked / self.kept - 1e-9) if self.kept > 0 else 0


def _with_room(view: ClusterView, room: float, least: int, *, besides: WorkerView) -> bool:
    """Report whether at least so many decode workers have no more than the part `room` in use.

    Where a worker takes few requests at once, a place for each class on every worker would be far more than they ask
    for: one may be filled if enough others keep theirs.
    """
    free = 0
    for worker in view.workers.by_index.values():
        if worker.answers.load > room or worker is besides or worker.name not in view.workers.decoding:
            continue
        free += worker.health.breaker.available
        if free >= least:
            return True
    return False
