"""Which worker serves a whole request, prompt and answer: filter -> score -> pick. Pure.

Prefill belongs to prefill workers, and decoding to decode workers. A request goes to a decode worker as a whole
(deflection) where little of its prompt is not cached there, or where the prefill workers are late; and it stays on its
prefill worker where it is in time only without the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Final

from fulcrum.routing.filters import Filter, Workers, decode_order, has_adapter, holders, left, not_tried, pool_takes_it
from fulcrum.routing.path import Prefill, Route
from fulcrum.routing.pools import PoolGroup, RevisionGroup
from fulcrum.routing.prefill import pick_prefill
from fulcrum.routing.scorers import best_path
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView

FILTERS: Final[tuple[Filter, ...]] = (pool_takes_it, not_tried, has_adapter)
"""Filters of workers that are to serve the whole request."""


def pick_whole(search: Search, pools: Sequence[PoolGroup]) -> Route | None:
    """Return the path in one leg of the lowest cost (`scorers.PATH`): on the worker that is the emptiest, or on the one
    that prefills soonest.

    Of equals the emptiest: a step that ends a moment sooner is no reason to fill one worker before another.
    """
    soonest = pick_prefill(search, pools, FILTERS)
    if soonest is None:
        return None
    found = [search.one_leg(soonest)]
    emptiest = _emptiest(search, [left(FILTERS, search, pool, pool.workers) for pool in pools])
    if emptiest is not None and emptiest is not soonest.prefill:
        found.insert(0, search.one_leg(search.prefill_on(emptiest)))
    return best_path(search, found)


def deflected(search: Search, revision: RevisionGroup, pair: Route) -> Route | None:
    """Return the whole request on a decode worker, where that is sooner than `pair` and makes less than one other late.

    It saves one request itself.
    """
    late = pair.ttft_seconds > search.ttft_seconds
    worker = _emptiest(search, [holders(FILTERS, search, pool) for pool in revision.decode])
    if worker is None or (late and TUNING.clearly_fuller(worker.answers.load, pair.decode.answers.load)):
        worker = pair.decode if late else None
    if worker is None:
        return None
    path = search.one_leg(search.prefill_on(worker))
    tpot_seconds = min(search.view.tpot_seconds, worker.answers.tight_tpot_seconds)
    if path.ttft_seconds > min(pair.ttft_seconds, search.ttft_seconds):
        return None
    if path.hand_over.step_seconds > TUNING.estimate_share * tpot_seconds:
        return None
    stall_seconds = path.wait_seconds + path.work_seconds
    return path if harmed(worker, stall_seconds, tpot_seconds) < 1.0 else None


def harmed(worker: WorkerView, stall_seconds: float, tpot_seconds: float) -> float:
    """Return how many requests that decode on `worker`, or will soon, end before they have made good for a stall.

    TPOT is an average: a long answer hardly feels a stall, one that ends after a few more tokens misses its promise.
    How long answers are is not known beforehand, so what is left of them is taken for exponential.
    """
    answers = worker.answers
    many = answers.requests + answers.join_rate * stall_seconds
    left_tokens, own = 1.0, answers.running + answers.pending
    if own:
        left_tokens = max((answers.running * answers.left_tokens + answers.pending_output) / own, 1.0)
    gain_seconds = tpot_seconds - answers.step_seconds()
    return many * (1 - exp(-stall_seconds / (gain_seconds * left_tokens))) if gain_seconds > 0 else many


def staying(search: Search, prefill: Prefill) -> Route | None:
    """Return the whole request on its prefill worker, where it is in time and keeps its pace between the prompts."""
    path = search.one_leg(prefill)
    in_time = path.ttft_seconds <= search.ttft_seconds and path.slowest_seconds <= search.tpot_seconds
    return path if in_time else None


def _emptiest(search: Search, pools: Sequence[Workers]) -> WorkerView | None:
    """Return the worker with the least to decode, by workers of each pool."""
    found = [worker for workers in pools for worker in workers]
    return min(found, key=decode_order(search)) if found else None
