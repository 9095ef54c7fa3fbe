"""How much workers, and the KV pool that they share, keep of what was computed: the affinity memory is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fulcrum.kv import Tiers
from fulcrum.routing.affinity import POOL, AffinityMemory
from fulcrum.routing.worker import WorkerView


class PrefixRoom:
    """The room of all workers, in units of the affinity memory."""

    def __init__(self, affinity: AffinityMemory, units_per_token: float) -> None:
        self._affinity = affinity
        self._units_per_token = units_per_token
        self._pool_tokens: float | None = 0.0
        """Size of the KV pool, the largest that a worker reports; None: one that reported it has left."""

    def keep(self, worker: WorkerView) -> None:
        """A worker came, or its KV cache or its tiers have changed."""
        host = worker.tiers.host_tokens if worker.tiers is not None else 0.0
        units = self._units_per_token
        self._affinity.join(worker.index, (worker.engine.kv_capacity or 1e6) * units, host * units)

    def forget(self, worker: WorkerView) -> None:
        """It is gone."""
        self._affinity.leave(worker.index)
        if _pool_tokens(worker.tiers):
            self._pool_tokens = None

    def set_tiers(self, ranks: Iterable[WorkerView], tiers: Tiers | None, workers: Iterable[WorkerView]) -> None:
        """The `ranks` of a worker, which are among the `workers`, have these tiers from now on."""
        had_tokens, has_tokens = 0.0, _pool_tokens(tiers)
        for worker in ranks:
            had_tokens, worker.tiers = _pool_tokens(worker.tiers), tiers
            self.keep(worker)
        if self._pool_tokens is None or has_tokens < had_tokens:
            self._pool_tokens = max((_pool_tokens(one.tiers) for one in workers), default=0.0)
        self._pool_tokens = max(self._pool_tokens, has_tokens)
        if self._pool_tokens:
            self._affinity.join(POOL, 0.0, self._pool_tokens * self._units_per_token)
        else:
            self._affinity.leave(POOL)


def _pool_tokens(tiers: Tiers | None) -> float:
    return 0.0 if tiers is None else tiers.pool_tokens
