"""Which workers of a pool can take a request: small functions. Pure.

`prefill`, `decode` and `whole` list those that they apply, in order.

What does not depend on the request is filtered when a worker changes (`pools.by_revision`): workers without a role,
those of other revisions, and suspects while any other worker is left. A filter gets the search, a pool, its workers
that are left, and, for a decode worker, the worker that the KV comes from; it returns the workers that stay. It runs
for each request, so it returns the same list when it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from fulcrum.routing.pools import PoolGroup
from fulcrum.routing.search import Search
from fulcrum.routing.worker import WorkerView

Workers = Sequence[WorkerView]
DecodeOrder = Callable[[WorkerView], tuple[float, ...]]
Filter = Callable[[Search, PoolGroup, Workers, WorkerView | None], Workers]

by_decode: Final[DecodeOrder] = attrgetter("decode_key")
"""Key of the worker with the most capacity to decode: the lowest. Batch requests make way, so they do not count."""


def by_idle_decode(worker: WorkerView) -> tuple[float, ...]:
    """The same for a batch request, for which no other one makes way."""
    return (worker.answers.load,)


def decode_order(search: Search) -> DecodeOrder:
    """Return the key of the decode worker that is the best for a request: the lowest."""
    return by_idle_decode if search.batch else by_decode


def pool_takes_it(search: Search, pool: PoolGroup, workers: Workers, _source: WorkerView | None) -> Workers:
    """The pool admits the request, and its KV cache is large enough."""
    return workers if pool.takes(search.incoming.prompt_tokens, search.incoming.qos) else ()


def not_tried(search: Search, _pool: PoolGroup, workers: Workers, _source: WorkerView | None) -> Workers:
    """The worker has not failed this request already."""
    tried = search.incoming.exclude
    return [worker for worker in workers if worker.worker not in tried] if tried else workers


def has_adapter(search: Search, _pool: PoolGroup, workers: Workers, _source: WorkerView | None) -> Workers:
    """It has loaded the adapter that the request asks for."""
    adapter = search.incoming.adapter
    return [worker for worker in workers if adapter in worker.adapters] if adapter else workers


def can_send(search: Search, _pool: PoolGroup, workers: Workers, _source: WorkerView | None) -> Workers:
    """Some decode worker can pull KV from it."""
    unpaired = search.view.workers.unpaired
    return [worker for worker in workers if worker.name not in unpaired] if unpaired else workers


def can_pull(search: Search, _pool: PoolGroup, workers: Workers, source: WorkerView | None) -> Workers:
    """It can pull KV from `source`."""
    broken = search.view.workers.broken
    if not broken or source is None:
        return workers
    return [worker for worker in workers if (source.name, worker.name) not in broken]


def left(
    filters: Sequence[Filter], search: Search, pool: PoolGroup, workers: Workers, source: WorkerView | None = None
) -> Workers:
    """Return what all `filters` leave of `workers`."""
    for one in filters:
        if not workers:
            break
        workers = one(search, pool, workers, source)
    return workers


def holders(filters: Sequence[Filter], search: Search, pool: PoolGroup, source: WorkerView | None = None) -> Workers:
    """Return what all `filters` leave of the workers of a pool that hold the prompt's prefix."""
    if not search.holders:
        return ()
    return left(filters, search, pool, [worker for worker in search.holders if worker in pool.members], source)
