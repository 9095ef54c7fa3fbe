"""How well a worker answers: its failures, and how late it is against what was predicted. Pure."""

from __future__ import annotations

from fulcrum.routing.tuning import TUNING


class Health:
    """What is known of a worker in its present role."""

    def __init__(self) -> None:
        self.begin_again()

    def begin_again(self, ejections: int = 0) -> None:
        """Forget what it answered; it was ejected so many times in a row."""
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
        return enough(self.answers) and self.failures > TUNING.outlier_share * self.answers


def enough(requests: float) -> bool:
    """Report whether so many requests can show an outlier: half of those that are remembered."""
    return 2 * requests >= TUNING.recent_requests
