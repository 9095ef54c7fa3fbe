"""What is known of how a worker answers: whether it gets requests, how many it failed, how late it is. Pure."""

from __future__ import annotations

from fulcrum.routing.breaker import Breaker
from fulcrum.routing.tuning import TUNING


class WorkerHealth:
    """One memory of a worker: each answer and failure is told once, and counts for its breaker and its record."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        """Whether it gets requests."""
        self.record = Record()
        """What its peers are compared with; begins anew with a role, and after an ejection."""
        self.ejections = 0
        """In its present role."""

    def take_role(self) -> None:
        """It has another role: how it did in the one before says nothing."""
        self.record = Record()
        self.ejections = 0

    def failed(self, now_seconds: float) -> None:
        """It failed a request by its own fault."""
        self.record.answered(failed=True)
        self.breaker.failed(now_seconds)

    def worked(self) -> bool:
        """It answered a request. Returns whether it is trusted again."""
        self.record.answered()
        return self.breaker.worked()

    def eject(self, now_seconds: float) -> None:
        """It is an outlier: leave it alone, each time for longer."""
        self.ejections = min(self.ejections + 1, 10)
        self.record = Record()
        self.breaker.eject(now_seconds, TUNING.memory_seconds * self.ejections)


class Record:
    """Failures and latencies of a worker; old ones fade."""

    def __init__(self) -> None:
        self.answers = self.failures = 0.0
        """Requests that were answered or failed, and those of them that failed."""
        self.samples = 0
        self.ratio = 1.0
        """Actual over predicted latency, the mean of the last samples."""

    def learn(self, actual_seconds: float, predicted_seconds: float) -> None:
        """One latency of a request on the worker. A sample of all will do."""
        self.samples += 1
        rate = 1 / min(self.samples, TUNING.recent_requests)
        self.ratio += rate * (actual_seconds / predicted_seconds - self.ratio)

    def answered(self, *, failed: bool = False) -> None:
        """The worker answered a request, or failed it."""
        self.answers += 1
        self.failures += failed
        if self.answers > TUNING.recent_requests:
            self.failures /= 2
            self.answers /= 2

    @property
    def failing(self) -> bool:
        """Whether it failed too many of its requests, whatever its peers did."""
        return enough(self.answers) and self.failures > TUNING.outlier_share * self.answers


def enough(requests: float) -> bool:
    """Report whether so many requests can show an outlier: half of those that are remembered."""
    return 2 * requests >= TUNING.recent_requests
