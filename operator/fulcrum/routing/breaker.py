"""Whether a worker gets requests: a circuit breaker for each, and what it answered. Pure: the clock is passed in."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fulcrum.routing.tuning import TUNING


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
    """Opens after a failure, then lets one request try, with ever longer pauses between.

    | event | closed | open | half open | probing |
    |---|---|---|---|---|
    | `failed` | open | open, as long as before | open, for longer | open, for longer |
    | `eject` | open | open until then | open | open |
    | `doubted` | one doubt more | one doubt more | one doubt more | one doubt more |
    | `worked` | closed, no doubts | open, no doubts | closed, no doubts | closed, no doubts |
    | `taken` | closed | open | probing | probing |
    | the pause is over (`tick`) | closed | half open | half open | half open |

    One failure is enough: a dead worker answers at once and so always looks like the least loaded one.
    """

    def __init__(self) -> None:
        self.answers = 0
        """Requests that the worker answered."""
        self.doubts = 0
        """Requests in a row that it failed in a way that may be their own fault."""
        self.state = _CLOSED
        self._pauses = 0
        """Since it last worked."""
        self._until = 0.0

    @property
    def available(self) -> bool:
        """A request may be sent to the worker."""
        return self.state is _CLOSED or self.state is _HALF_OPEN

    def failed(self, now_seconds: float) -> None:
        """The worker failed a request: it did not answer, broke off, or answered with a server error."""
        if self.state is _OPEN:
            return  # what was under way when it opened says nothing new
        self._pauses += 1
        self.eject(now_seconds, TUNING.pause_seconds(self._pauses))

    def doubted(self) -> None:
        """The worker failed a request which may be at fault itself: another worker shows it."""
        self.doubts += 1

    def eject(self, now_seconds: float, seconds: float) -> None:
        """Avoid the worker for `seconds` whatever it answered: it is an outlier."""
        self.state = _OPEN
        self._until = now_seconds + seconds

    def worked(self) -> bool:
        """The worker answered. Returns whether it is trusted again.

        One that was ejected stays out for its time: it does answer, only badly.
        """
        self.answers += 1
        self.doubts = 0
        if self.state is _CLOSED or self.state is _OPEN:
            return False
        self.state = _CLOSED
        self._pauses = 0
        return True

    def taken(self, now_seconds: float) -> None:
        """A request was sent to the worker."""
        if self.state is _HALF_OPEN:
            self.state = _PROBING
            self._until = now_seconds + TUNING.longest_pause_seconds

    def tick(self, now_seconds: float) -> None:
        """Time went by: pauses end, and a probe that was not heard of again counts as none."""
        if self.state in (_OPEN, _PROBING) and now_seconds >= self._until:
            self.state = _HALF_OPEN
