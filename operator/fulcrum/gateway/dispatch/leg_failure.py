"""How one leg of a request failed."""

from __future__ import annotations

from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.workers.registry import KnownRank, KnownWorker


class LegFailedError(Exception):
    """A leg failed on `rank` in a way that another worker may not."""

    def __init__(self, rank: KnownRank, leg: str, failure: Failure) -> None:
        super().__init__(f"{leg} on {rank.name}: {failure}")
        self.rank = rank
        self.leg = leg
        self.failure = failure

    @property
    def worker(self) -> KnownWorker:
        """The worker that failed."""
        return self.rank.worker
