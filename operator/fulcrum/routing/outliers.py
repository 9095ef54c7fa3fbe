"""Outlier ejection: a worker that answers, but much slower or worse than its peers, is left alone for a while. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from fulcrum.api.names import Role
from fulcrum.routing.tuning import TUNING

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView


class Health:
    """What is known of a worker in its present role."""

    def __init__(self, ejections: int = 0) -> None:
        self.answers = self.failures = 0.0
        """Requests that were answered or failed, and those of them that failed; old ones fade."""
        self.samples = 0
        self.ratio = 1.0
        """Actual over predicted latency, the mean of the last samples."""
        self.ejections = ejections

    def learn(self, actual_seconds: float, predicted_seconds: float) -> None:
        """One latency of a request on the worker. A sample of all will do."""
        self.samples += 1
        rate = 1 / min(self.samples, TUNING.recent_requests)
        self.ratio += rate * (actual_seconds / predicted_seconds - self.ratio)

    def answered(self, count: int, failures: int = 0) -> None:
        """The worker answered `count` requests, of which it failed `failures`."""
        self.answers += count
        self.failures += failures
        if self.answers > TUNING.recent_requests:
            self.failures /= 2
            self.answers /= 2

    @property
    def failing(self) -> bool:
        """Whether it failed too many of its requests, whatever its peers did."""
        return _enough(self.answers) and self.failures > TUNING.outlier_share * self.answers


def eject_outliers(workers: Iterable[WorkerView], now_seconds: float) -> list[WorkerView]:
    """Take outliers out of use, each time for longer; they start again with an empty record. Returns them."""
    peers: dict[tuple[str, Role], list[WorkerView]] = {}
    for worker in workers:
        peers.setdefault((worker.pool, worker.role), []).append(worker)
    found = [worker for group in peers.values() for worker in _outliers_of(group)]
    for worker in found:
        worker.health = Health(min(worker.health.ejections + 1, 10))
        worker.breaker.eject(now_seconds, TUNING.memory_seconds * worker.health.ejections)
    return found


def _enough(requests: float) -> bool:
    """Report whether so many requests can show an outlier: half of those that are remembered."""
    return 2 * requests >= TUNING.recent_requests


def _outliers_of(peers: Sequence[WorkerView]) -> list[WorkerView]:
    """Return the outliers of one pool and role, worst first, and no more than may be missed."""
    in_use = [worker for worker in peers if worker.breaker.available]
    ejected = len(peers) - len(in_use)
    allowed = min(int(TUNING.outlier_share * len(peers)) - ejected, len(in_use) - 1)
    if allowed <= 0:
        return []
    known = [worker for worker in in_use if _enough(worker.health.samples)]
    slow = TUNING.most_wrong * median(worker.health.ratio for worker in known) if len(known) > 1 else inf
    found = [worker for worker in in_use if worker.health.failing or (worker in known and worker.health.ratio > slow)]
    return sorted(found, key=lambda worker: (not worker.health.failing, -worker.health.ratio))[:allowed]
