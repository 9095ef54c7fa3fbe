"""Which worker decodes after a prefill on another one: filter -> score -> pick. Pure.

As in `prefill`, few are predicted in full: of each pool the emptiest worker, or the emptiest on the node of the prefill
where it is as good, and the emptiest that holds the prompt's prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fulcrum.routing.filters import Filter, can_pull, decode_order, has_adapter, holders, left, not_tried, pool_takes_it
from fulcrum.routing.path import Prefill, Route
from fulcrum.routing.pools import PoolGroup
from fulcrum.routing.scorers import best_path
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING

FILTERS: Final[tuple[Filter, ...]] = (pool_takes_it, not_tried, has_adapter, can_pull)
"""Filters of workers for the second of two legs."""


def pick_decode(search: Search, prefill: Prefill, pools: Sequence[PoolGroup]) -> Route | None:
    """Return the path in two legs of the lowest cost (`scorers.PATH`) for a prefill."""
    source, by_decode = prefill.prefill, decode_order(search)
    found: list[Route] = []
    for pool in pools:
        workers = left(FILTERS, search, pool, pool.workers, source)
        if not workers:
            continue
        worker = min(workers, key=by_decode) if len(workers) > 1 else workers[0]
        if worker.node != source.node and source.node in pool.by_node:
            near = left(FILTERS, search, pool, pool.by_node[source.node], source)
            if near:
                neighbour = min(near, key=by_decode)
                if TUNING.equally_full(neighbour.answers.load, worker.answers.load):
                    worker = neighbour
        found.append(search.two_legs(prefill, worker))
        holding = holders(FILTERS, search, pool, source)
        if holding:
            # What it holds need not be moved.
            holder = min(holding, key=by_decode)
            if holder is not worker and TUNING.equally_full(holder.answers.load, worker.answers.load):
                found.append(search.two_legs(prefill, holder))
    return best_path(search, found)
