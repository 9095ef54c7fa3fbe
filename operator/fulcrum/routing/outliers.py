"""Outlier ejection: a worker that answers, but much slower or worse than its like, is left alone for a while. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from fulcrum.api.names import Role
from fulcrum.routing.tuning import TUNING, RoutingTuning

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView


class _Health:
    """A worker in one role."""

    def __init__(self, ejections: int = 0) -> None:
        self.answers = 0
        """Requests that were answered, or failed."""
        self.failures = 0.0
        """Share of failed ones, of the last."""
        self.ratios = 0
        self.ratio = 1.0
        """Actual over predicted latency, of the last."""
        self.ejections = ejections


class Outliers:
    """Health of all workers; only those of one pool and role are alike."""

    def __init__(self, tuning: RoutingTuning = TUNING) -> None:
        self._tuning = tuning
        self._weight = 1 / tuning.outlier_requests
        self._health: dict[int, dict[Role, _Health]] = {}
        """By number of the worker."""

    def learn(self, worker: WorkerView, actual_seconds: float, predicted_seconds: float) -> None:
        """One latency of a request on `worker`. A sample of all will do."""
        small = self._tuning.outlier_small_seconds
        health = self._of(worker)
        health.ratios += 1
        ratio = (actual_seconds + small) / (predicted_seconds + small)
        health.ratio += max(self._weight, 1 / health.ratios) * (ratio - health.ratio)

    def answered(self, worker: WorkerView, count: int) -> None:
        """`worker` answered `count` requests, well or badly but not with a failure."""
        health = self._of(worker)
        # A plain mean until there are as many as the memory holds.
        young = min(count, max(self._tuning.outlier_requests - health.answers, 0))
        if young:
            health.failures *= health.answers / (health.answers + young)
        health.failures *= (1 - self._weight) ** (count - young)
        health.answers += count

    def failed(self, worker: WorkerView) -> None:
        """`worker` failed a request."""
        health = self._of(worker)
        health.answers += 1
        health.failures += max(self._weight, 1 / health.answers) * (1 - health.failures)

    def forget(self, worker: WorkerView) -> None:
        """`worker` is gone, or is another process now."""
        self._health.pop(worker.index, None)

    def find(self, workers: Iterable[WorkerView]) -> list[tuple[WorkerView, float]]:
        """Outliers among all `workers`, worst first, with the seconds for which each is to be left alone.

        The caller takes them out of use (`Breaker.eject`), each time for longer. They start again with an empty record.
        """
        alike: dict[tuple[str, Role], list[WorkerView]] = {}
        for worker in workers:
            alike.setdefault((worker.pool, worker.role), []).append(worker)
        found = []
        for group in alike.values():
            for worker in self._outliers_of(group):
                ejections = min(self._of(worker).ejections + 1, 10)
                self._health[worker.index][worker.role] = _Health(ejections)
                found.append((worker, self._tuning.memory_seconds * ejections))
        return found

    def _outliers_of(self, alike: Sequence[WorkerView]) -> Sequence[WorkerView]:
        tuning, enough = self._tuning, self._tuning.outlier_requests
        in_use = [worker for worker in alike if worker.breaker.available]
        ejected = len(alike) - len(in_use)
        allowed = min(int(tuning.outlier_share * len(alike)) - ejected, len(in_use) - 1)
        if allowed <= 0:
            return ()
        health = {worker: self._of(worker) for worker in in_use}
        ratios = [one.ratio for one in health.values() if one.ratios >= enough]
        slow = tuning.outlier_factor * median(ratios) if len(ratios) > 1 else float("inf")
        found = [
            worker
            for worker, one in health.items()
            if (one.answers >= enough and one.failures > tuning.outlier_share)
            or (one.ratios >= enough and one.ratio > slow)
        ]
        return sorted(found, key=lambda worker: (-health[worker].failures, -health[worker].ratio))[:allowed]

    def _of(self, worker: WorkerView) -> _Health:
        roles = self._health.setdefault(worker.index, {})
        found = roles.get(worker.role)
        if found is None:
            found = roles[worker.role] = _Health()
        return found
