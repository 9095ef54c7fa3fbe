"""Which worker serves a whole request, prompt and answer: filter -> score -> pick. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fulcrum.routing.filters import Filter, decode_order, has_adapter, holders, left, not_tried, pool_takes_it
from fulcrum.routing.path import Route
from fulcrum.routing.pools import PoolGroup
from fulcrum.routing.prefill import pick_prefill
from fulcrum.routing.scorers import best_path
from fulcrum.routing.search import Search
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
    emptiest = emptiest_of(search, pools)
    if emptiest is not None and emptiest is not soonest.prefill:
        found.insert(0, search.one_leg(search.prefill_on(emptiest)))
    return best_path(search, found)


def emptiest_of(search: Search, pools: Sequence[PoolGroup]) -> WorkerView | None:
    """Return the worker with the least to decode."""
    found: list[WorkerView] = []
    for pool in pools:
        found.extend(left(FILTERS, search, pool, pool.workers))
    return min(found, key=decode_order(search)) if found else None


def emptiest_holder(search: Search, pools: Sequence[PoolGroup]) -> WorkerView | None:
    """Return the worker with the least to decode of those that hold the prompt's prefix."""
    found: list[WorkerView] = []
    for pool in pools:
        found.extend(holders(FILTERS, search, pool))
    return min(found, key=decode_order(search)) if found else None
