"""The path of a request: filter -> score -> pick, over predicted latencies. Pure.

Scanning is left to `min` over keys that the view keeps up to date; only the few workers that can be best (the least
loaded one of each pool, those that hold the prompt's prefix, one on the same node) are predicted in full. So a choice
costs nearly the same for 8 workers as for 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, Final

from fulcrum.routing.lanes import Group, Lane
from fulcrum.routing.outcome import NobodyFits, NobodyThere, NoPool
from fulcrum.routing.path import Incoming, Prefill, Route
from fulcrum.routing.search import Search

if TYPE_CHECKING:
    from fulcrum.routing.view import ClusterView
    from fulcrum.routing.worker import WorkerView

_SLACK: Final = 0.8
"""A prefill goes to a decode worker only where its residents stay below this share of the TPOT promise."""
_STAYING: Final = 0.9
"""A request decodes on a prefill worker only where its steps stay below this share of its TPOT promise."""
_MOST_HARMED: Final = 0.25
_NEARLY: Final = 1.05
"""Scores within this factor are taken for equal."""
_FULLER: Final = 0.25
"""A worker that holds the prefix is left aside when it is fuller than the calmest by this share of a worker."""


def route(incoming: Incoming, view: ClusterView, now_seconds: float) -> Route | NobodyThere | NobodyFits | NoPool:
    """Best path for a request.

    A prefill and a decode worker of one revision; or one worker for both: a mixed one, a decode worker with slack
    (deflection) when the transfer does not pay or the prefill workers cannot make it in time, or any worker when a role
    is empty or two legs cannot carry the request.
    """
    search = Search(incoming, view, now_seconds)
    for lanes in (view.lanes, view.fallback_lanes):
        best: Route | None = None
        for lane in lanes:
            for path in _paths(search, lane):
                if best is None or path.score < best.score:
                    best = path
        if best is not None:
            return best
    return _nobody(incoming, view)


def decode_elsewhere(incoming: Incoming, prefill: WorkerView, view: ClusterView, now_seconds: float) -> Route | None:
    """Best decode worker for a request whose KV is held at `prefill`; None: no worker can pull it."""
    search = Search(incoming, view, now_seconds)
    done = Prefill(prefill, incoming.prompt_tokens, 0.0, 0.0, 0.0, 0.0, 0.0)
    for lanes in (view.lanes, view.fallback_lanes):
        best: Route | None = None
        for lane in lanes:
            if any(prefill in group.members for group in lane.prefill):
                path = search.pair(done, lane)
                if path is not None and (best is None or path.score < best.score):
                    best = path
        if best is not None:
            return best
    return None


def _paths(search: Search, lane: Lane) -> list[Route]:
    paths: list[Route] = []
    if lane.decode and lane.prefill and not search.incoming.whole:
        prefill = search.prefill(lane.prefill, search.view.unpaired)
        pair = search.pair(prefill, lane) if prefill is not None else None
        if prefill is not None and pair is not None:
            paths.append(pair)
            late = pair.ttft_seconds > search.ttft_seconds
            if (search.held or late) and not search.incoming.two_legs:
                _deflect(search, lane, pair, paths)
                if late:
                    _stay(search, lane, prefill, paths)
    if lane.mixed:
        _whole(search, lane, lane.mixed, paths)
    if not paths:
        # A whole request is mostly decoding, so it disturbs a decode worker less than a prefill worker.
        _whole(search, lane, lane.decode, paths)
        if not paths:
            _whole(search, lane, lane.prefill, paths)
    return paths


def _whole(search: Search, lane: Lane, groups: Sequence[Group], paths: list[Route]) -> None:
    """Add the whole request on the worker that would prefill it soonest, and on the one with the least to decode."""
    soonest = search.prefill(groups)
    if soonest is None:
        return
    path = search.whole(soonest, lane)
    calm = search.calmest(groups)
    if calm is not None and calm is not soonest.worker:
        other = search.whole(search.queued(calm), lane)
        # Whose step ends a moment sooner is no reason to fill one worker before another.
        if other.score < _NEARLY * path.score:
            path = other
    paths.append(path)


def _deflect(search: Search, lane: Lane, pair: Route, paths: list[Route]) -> None:
    """Add the whole request on a decode worker with slack, where that is sooner and its residents keep their pace.

    Prefill belongs to prefill workers: it comes here only when little of it is not cached, or when it is late there.
    """
    late = pair.ttft_seconds > search.ttft_seconds
    worker = search.calmest_holder(lane.decode)
    if worker is None or (late and worker.decode_key > pair.decode.decode_key + _FULLER):
        worker = pair.decode if late else None
    if worker is None:
        return
    prefill = search.queued(worker)
    stall_seconds = prefill.wait_seconds + prefill.work_seconds
    tpot_seconds = min(search.view.tpot_seconds, worker.tight_tpot_seconds)
    pace_seconds = _SLACK * tpot_seconds
    longest_seconds = min(pair.ttft_seconds, search.ttft_seconds)
    if stall_seconds > longest_seconds or worker.step_seconds() > pace_seconds:
        return
    if _harmed(worker, stall_seconds, tpot_seconds) > _MOST_HARMED:
        return
    if late and worker.pending and _makes_late(worker, stall_seconds, search):
        return
    path = search.whole(prefill, lane)
    if path.ttft_seconds <= longest_seconds and path.hand_over.step_seconds <= pace_seconds:
        paths.append(path)


def _stay(search: Search, lane: Lane, prefill: Prefill, paths: list[Route]) -> None:
    """Add the whole request on the prefill worker, where it is in time only without the transfer.

    It decodes between the prompts of others, so it must keep its pace there.
    """
    if prefill.wait_seconds + prefill.own_seconds > search.ttft_seconds:
        return
    path = search.staying(prefill, lane)
    slowest_seconds = max(path.hand_over.step_seconds, path.hand_over.tpot_seconds)
    if path.ttft_seconds > search.ttft_seconds or slowest_seconds > _STAYING * search.tpot_seconds:
        return
    paths.append(path)


def _harmed(worker: WorkerView, stall_seconds: float, tpot_seconds: float) -> float:
    """Return how many of those who decode on `worker`, or will soon, end before they have made good for a stall.

    TPOT is an average: a long answer hardly feels it, one that ends after a few more tokens misses its promise. How
    long answers are is not known beforehand, so what is left of them is taken for exponential.
    """
    running, pending = worker.running, worker.pending
    many = running + pending + worker.foreign_running + worker.join_rate * stall_seconds
    left_tokens = 1.0
    if running + pending:
        left_tokens = max((running * worker.left_tokens + worker.pending_output) / (running + pending), 1.0)
    gain_seconds = tpot_seconds - worker.step_seconds()  # above 0, as the caller has seen
    return many * (1 - exp(-stall_seconds / (gain_seconds * left_tokens)))


def _makes_late(worker: WorkerView, stall_seconds: float, search: Search) -> bool:
    """Whether somebody who is handed over to `worker` during a stall would get its first token too late for it."""
    done_at = search.now_seconds + stall_seconds
    promise_seconds = search.view.ttft_seconds
    for other in search.view.workers.values():
        for leg in other.legs:
            if leg.decode is worker and other is not worker:
                first_at = leg.asked_at + leg.ttft_seconds
                if first_at < done_at and leg.ttft_seconds <= promise_seconds < done_at - leg.asked_at:
                    return True
    return False


def _nobody(incoming: Incoming, view: ClusterView) -> NobodyThere | NobodyFits | NoPool:
    known = len(view.workers)
    if not known:
        return NobodyThere()
    serving = [worker for lane in view.every_lane for group in lane.groups for worker in group.workers]
    excluded = sum(worker.name in incoming.exclude for worker in serving)
    if len(serving) > excluded and not view.any_pool_takes(incoming.prompt_tokens, incoming.qos):
        return NoPool(known=known)
    return NobodyFits(known=known, wrong_role=known - len(serving), excluded=excluded)
