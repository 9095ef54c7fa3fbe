"""How long a worker takes from its creation to readiness, measured on the Pods that there are."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from fulcrum.decide import ObservedWorker

_KEPT: Final = 64


class StartTimes:
    """Remembers the last starts of one cluster's workers."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        """By uid, in the order in which they were first seen."""

    def observe(self, workers: Iterable[ObservedWorker]) -> None:
        """Take in what there is. A Pod whose engine was restarted says nothing about starts any more."""
        for worker in workers:
            if worker.created is None or worker.ready_since is None or worker.restarts:
                continue
            seconds = (worker.ready_since - worker.created).total_seconds()
            if seconds >= 0:
                # Readiness that came back is later than the start.
                self._seconds[worker.uid] = min(seconds, self._seconds.get(worker.uid, seconds))
        for uid in list(self._seconds)[:-_KEPT]:
            del self._seconds[uid]

    @property
    def typical_seconds(self) -> float | None:
        """The median; None while no start was seen."""
        return median(self._seconds.values()) if self._seconds else None
