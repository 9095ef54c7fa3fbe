"""The few paths that can be best. Pure.

Scanning is left to `min` over keys that workers keep up to date; only the worker of each pool that comes first by its
key, those that hold the prompt's prefix and the one on the same node are predicted in full. So a choice costs nearly
the same for 8 workers as for 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from fulcrum.routing import filters
from fulcrum.routing.filters import Filter, Workers, left
from fulcrum.routing.path import Prefill, Route
from fulcrum.routing.pools import PoolGroup
from fulcrum.routing.scorers import best_path, best_prefill, path_cost
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView

_by_prefill: Final[Callable[[WorkerView], tuple[float, ...]]] = attrgetter("prefill_key")
_by_decode: Final[Callable[[WorkerView], tuple[float, ...]]] = attrgetter("decode_key")


def prefill_for(
    search: Search, pools: Sequence[PoolGroup], which: Sequence[Filter], onward: Sequence[PoolGroup] = ()
) -> Prefill | None:
    """Return the best prefill on the workers that the filters `which` leave.

    With pools `onward`, the KV then goes to a worker of one of them.
    """
    found: list[Prefill] = []
    for pool in pools:
        workers = left(which, search, pool, pool.workers)
        if not workers:
            continue
        first = _soonest(search, workers)
        found.append(search.prefill_on(first))
        found.extend(search.prefill_on(holder) for holder in _holders(search, pool, which) if holder is not first)
    return best_prefill(search, found, onward if len(pools) > 1 else ())


def _holders(search: Search, pool: PoolGroup, which: Sequence[Filter], source: WorkerView | None = None) -> Workers:
    """Return the workers of a pool that hold the prompt's prefix."""
    if not search.holders:
        return ()
    return left(which, search, pool, [worker for worker in search.holders if worker in pool.members], source)


def _soonest(search: Search, workers: Workers) -> WorkerView:
    if len(workers) == 1:
        return workers[0]
    first = min(workers, key=_by_prefill)
    if first.legs and first.overdue(search.now_seconds):
        # It hangs: its key cannot be believed, and so cannot those of others.
        return min(workers, key=lambda worker: worker.backlog_seconds(search.now_seconds))
    return first


def pair_for(search: Search, prefill: Prefill, pools: Sequence[PoolGroup]) -> Route | None:
    """Return the best path in two legs for a prefill."""
    source = prefill.prefill
    found: list[Route] = []
    for pool in pools:
        workers = left(filters.DECODE, search, pool, pool.workers, source)
        if not workers:
            continue
        worker = min(workers, key=_by_decode) if len(workers) > 1 else workers[0]
        if worker.node != source.node and source.node in pool.by_node:
            near = left(filters.DECODE, search, pool, pool.by_node[source.node], source)
            if near:
                neighbour = min(near, key=_by_decode)
                if neighbour.decode_load < worker.decode_load + 1 - TUNING.trusted:
                    worker = neighbour
        found.append(search.two_legs(prefill, worker))
        holders = _holders(search, pool, filters.DECODE, source)
        if holders:
            # What it holds need not be moved.
            holder = min(holders, key=_by_decode)
            if holder is not worker and holder.decode_load < worker.decode_load + 1 - TUNING.trusted:
                found.append(search.two_legs(prefill, holder))
    return best_path(search, found)


def whole_for(search: Search, pools: Sequence[PoolGroup]) -> list[Route]:
    """Return the path in one leg: on the worker that prefills soonest, or the emptiest one where it is as good.

    A step that ends a moment sooner is no reason to fill one worker before another.
    """
    soonest = prefill_for(search, pools, filters.WHOLE)
    if soonest is None:
        return []
    path = search.one_leg(soonest)
    emptiest = emptiest_of(search, pools, holders=False)
    if emptiest is not None and emptiest is not soonest.prefill:
        other = search.one_leg(search.prefill_on(emptiest))
        if path_cost(search, other) <= path_cost(search, path):
            return [other]
    return [path]


def emptiest_of(search: Search, pools: Sequence[PoolGroup], *, holders: bool) -> WorkerView | None:
    """Return the worker with the least to decode, of all or of the `holders` of the prompt's prefix."""
    found: list[WorkerView] = []
    for pool in pools:
        found.extend(
            _holders(search, pool, filters.WHOLE) if holders else left(filters.WHOLE, search, pool, pool.workers)
        )
    return min(found, key=_by_decode) if found else None
