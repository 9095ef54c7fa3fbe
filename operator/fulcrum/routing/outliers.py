"""Outlier ejection: a worker that answers, but much slower or worse than its peers, is left alone for a while. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from fulcrum.api.names import Role
from fulcrum.routing.health import enough
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView


def eject_outliers(workers: Iterable[WorkerView], now_seconds: float) -> list[WorkerView]:
    """Take outliers out of use, each time for longer; they start again with an empty record. Returns them.

    `workers` has one rank of each worker: all ranks share its health.
    """
    peers: dict[tuple[str, Role], list[WorkerView]] = {}
    for worker in workers:
        peers.setdefault((worker.pool, worker.role), []).append(worker)
    found = [worker for group in peers.values() for worker in _outliers_of(group)]
    for worker in found:
        worker.health.eject(now_seconds)
    return found


def _outliers_of(peers: Sequence[WorkerView]) -> list[WorkerView]:
    """Return the outliers of one pool and role, worst first, and no more than may be missed."""
    in_use = [worker for worker in peers if worker.health.breaker.available]
    ejected = len(peers) - len(in_use)
    allowed = min(int(TUNING.outlier_share * len(peers)) - ejected, len(in_use) - 1)
    if allowed <= 0:
        return []
    known = [worker for worker in in_use if enough(worker.health.record.samples)]
    slow = TUNING.most_wrong * median(worker.health.record.ratio for worker in known) if len(known) > 1 else inf
    found = [
        worker
        for worker in in_use
        if worker.health.record.failing or (worker in known and worker.health.record.ratio > slow)
    ]
    return sorted(found, key=lambda worker: (not worker.health.record.failing, -worker.health.record.ratio))[:allowed]
