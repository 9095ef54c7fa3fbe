"""Time in which prefill workers would have nothing to do: some of it may go to requests that come too late."""

from __future__ import annotations

from math import exp
from typing import Final

_MEMORY_SECONDS: Final = 60.0
_HEADROOM: Final = 0.6
"""Share of the prefill workers' time that has to be idle, so that the next burst is not met by late requests ..."""
_OF_IDLE: Final = 0.06
"""... and the part of what is idle beyond that may be spent."""
_SAVED: Final = 2.0
"""So many promised TTFTs of each prefill worker's time can be saved up."""


class SpareTime:
    """How much of it there is, by what was let in of late."""

    __slots__ = ("_busy", "_seconds", "_seen_at")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._busy = 0.0
        """Prefill workers' worth of work that was let in of late."""
        self._seen_at = -1.0

    def let_in(self, work_seconds: float) -> None:
        """So much prefill was let in."""
        self._busy += work_seconds / _MEMORY_SECONDS

    def passed(self, workers: float, ttft_seconds: float, now_seconds: float) -> None:
        """Time went by, with so many prefill workers."""
        if self._seen_at < 0:
            # Nothing is known of the load yet, so that there may be none to spare.
            self._busy, self._seen_at = workers, now_seconds
            return
        gone_seconds = now_seconds - self._seen_at
        if gone_seconds <= 0:
            return
        self._seen_at = now_seconds
        self._busy *= exp(-gone_seconds / _MEMORY_SECONDS)
        spare = (1 - _HEADROOM) * workers - self._busy
        if spare > 0:
            self._seconds = min(self._seconds + _OF_IDLE * spare * gone_seconds, _SAVED * ttft_seconds * workers)

    def take(self, seconds: float) -> bool:
        """Spend so much, if it is there."""
        if seconds > self._seconds:
            return False
        self._seconds -= seconds
        return True

    def give_back(self, seconds: float) -> None:
        """It was not needed after all."""
        self._seconds += seconds
