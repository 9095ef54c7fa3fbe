"""Which worker prefills a prompt: filter -> score -> pick. Pure.

Scanning is left to `min` over a key that workers keep up to date. Only the worker of each pool that comes first by it
and those that hold the prompt's prefix are predicted in full: a choice costs nearly the same for 8 workers as for 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from fulcrum.routing.filters import Filter, Workers, can_send, has_adapter, holders, left, not_tried, pool_takes_it
from fulcrum.routing.path import Prefill
from fulcrum.routing.pools import PoolGroup
from fulcrum.routing.search import Search
from fulcrum.routing.worker import WorkerView

by_prefill: Final[Callable[[WorkerView], tuple[float, ...]]] = attrgetter("prefill_key")
PrefillScorer = Callable[[Search, Prefill, Sequence[PoolGroup]], float]

FILTERS: Final[tuple[Filter, ...]] = (pool_takes_it, not_tried, has_adapter, can_send)
"""Filters of workers for the first of two legs."""


def done(_search: Search, prefill: Prefill, _onward: Sequence[PoolGroup]) -> float:
    """Until its end: the wait for its turn, and its own time."""
    return prefill.wait_seconds + prefill.own_seconds


def others_wait(_search: Search, prefill: Prefill, _onward: Sequence[PoolGroup]) -> float:
    """Its work counts once more, for the prompts that come after it."""
    return prefill.work_seconds


def moved_on(search: Search, prefill: Prefill, onward: Sequence[PoolGroup]) -> float:
    """Its KV is to be in the one of the pools `onward` that it gets to soonest."""
    costs = [search.view.transfers.cost(prefill.prefill, pool.workers[0]) for pool in onward]
    return min((cost.seconds(search.incoming.prompt_tokens) for cost in costs), default=0.0)


SCORERS: Final[tuple[PrefillScorer, ...]] = (done, others_wait, moved_on)
"""Scorers of prefills, in seconds."""


def pick_prefill(
    search: Search, pools: Sequence[PoolGroup], which: Sequence[Filter], onward: Sequence[PoolGroup] = ()
) -> Prefill | None:
    """Return the prefill of the lowest cost on the workers that the filters `which` leave, of equals the first.

    With pools `onward`, the KV then goes to a worker of one of them.
    """
    found: list[Prefill] = []
    for pool in pools:
        workers = left(which, search, pool, pool.workers)
        if not workers:
            continue
        first = _soonest(search, workers)
        found.append(search.prefill_on(first))
        found.extend(search.prefill_on(holder) for holder in holders(which, search, pool) if holder is not first)
    if len(found) < 2:
        return found[0] if found else None
    far = onward if len(pools) > 1 else ()
    return min(found, key=lambda prefill: _cost(search, prefill, far))


def _cost(search: Search, prefill: Prefill, onward: Sequence[PoolGroup]) -> float:
    seconds = 0.0
    for scorer in SCORERS:
        seconds += scorer(search, prefill, onward)
    return seconds


def _soonest(search: Search, workers: Workers) -> WorkerView:
    if len(workers) == 1:
        return workers[0]
    first = min(workers, key=by_prefill)
    prompts = first.prompts if first.lockstep is None else first.lockstep
    if first.prompts.legs and prompts.overdue(search.now_seconds):
        # It hangs: its key cannot be believed, and so cannot those of others.
        return min(workers, key=lambda worker: worker.prompts.backlog_seconds(search.now_seconds))
    return first
