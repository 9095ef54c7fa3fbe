"""How one leg of a request failed."""

from __future__ import annotations

from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.workers.registry import KnownWorker


class LegFailedError(Exception):
    """A leg failed on `worker` in a way that another worker may not."""

    def __init__(self, worker: KnownWorker, leg: str, failure: Failure) -> None:
        super().__init__(f"{leg} on {worker.name}: {failure}")
        self.worker = worker
        self.leg = leg
        self.failure = failure
