"""Who may get requests: a circuit breaker per worker. Pure: the clock is passed in."""

from __future__ import annotations

from enum import Enum
from typing import Final

FIRST_COOLDOWN_SECONDS: Final = 0.5
LONGEST_COOLDOWN_SECONDS: Final = 30.0
PROBE_SECONDS: Final = 10.0


class BreakerState(Enum):
    """Closed: in use. Open: avoided. Half open: one request may try it. Probing: that request is under way."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PROBING = "probing"


# Looking up a member of an enum costs half a microsecond, and this is asked for each answer.
_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_PROBING: Final = BreakerState.PROBING


class Breaker:
    """Opens after `threshold` failures in a row, then lets one request try, with ever longer pauses between.

    One failure is enough by default: a dead worker answers at once and so always looks like the least loaded one.
    """

    __slots__ = ("_cooldown_seconds", "_failures", "_threshold", "_until", "state")

    def __init__(self, threshold: int = 1) -> None:
        self.state = _CLOSED
        self._threshold = threshold
        self._failures = 0
        self._cooldown_seconds = FIRST_COOLDOWN_SECONDS
        self._until = 0.0

    @property
    def available(self) -> bool:
        """A request may be sent to the worker."""
        return self.state is _CLOSED or self.state is _HALF_OPEN

    @property
    def spotless(self) -> bool:
        """It has nothing to forgive."""
        return self.state is _CLOSED and self._failures == 0

    def failed(self, now_seconds: float) -> None:
        """The worker failed a request: it did not answer, broke off, or answered with a server error."""
        self._failures += 1
        if self.state is _OPEN:
            return  # what was under way when it opened says nothing new
        if self.state is _CLOSED and self._failures < self._threshold:
            return
        self.eject(now_seconds, self._cooldown_seconds)
        self._cooldown_seconds = min(2 * self._cooldown_seconds, LONGEST_COOLDOWN_SECONDS)

    def eject(self, now_seconds: float, seconds: float) -> None:
        """Avoid the worker for `seconds` whatever it answered: it is an outlier."""
        self.state = _OPEN
        self._until = now_seconds + seconds

    def worked(self) -> None:
        """The worker answered. One that was ejected stays out for its time: it does answer, only badly."""
        self._failures = 0
        if self.state in (_PROBING, _HALF_OPEN):
            self.state = _CLOSED
        if self.state is _CLOSED:
            self._cooldown_seconds = FIRST_COOLDOWN_SECONDS

    def taken(self, now_seconds: float) -> None:
        """A request was sent to the worker."""
        if self.state is _HALF_OPEN:
            self.state = _PROBING
            self._until = now_seconds + PROBE_SECONDS

    def tick(self, now_seconds: float) -> None:
        """Time went by: pauses end, and a probe that nobody heard of again counts as none."""
        if self.state in (_OPEN, _PROBING) and now_seconds >= self._until:
            self.state = _HALF_OPEN
