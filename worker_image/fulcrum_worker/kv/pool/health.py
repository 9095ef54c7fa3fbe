"""Whether the pool can be used now: a volume that fails or hangs is left alone for a while, and its fault is named."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

_PAUSE_SECONDS: Final = 10.0
"""Time between two tries of a volume that failed. Each costs a request at most the time box of a load."""


class Problem(StrEnum):
    """What is wrong with the volume."""

    READ_ONLY = "readOnly"
    FULL = "full"
    """The volume is full though the pool is within its size, or the size is below one block."""
    SLOW = "slow"
    """It did not answer in time."""
    GONE = "gone"
    """It answers with errors."""
    UNUSABLE = "unusable"
    """This engine's KV cannot be shared; the log has the reason."""


_BY_ERRNO: Final = {
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), Problem.READ_ONLY),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Problem.FULL),
    errno.ETIMEDOUT: Problem.SLOW,
}


def problem_of(error: OSError) -> Problem:
    """Return what an error of the volume means."""
    return _BY_ERRNO.get(error.errno or 0, Problem.GONE)


class Way:
    """One direction, reading or writing. Safe between threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._problem: Problem | None = None
        self._until = float("-inf")

    @property
    def problem(self) -> Problem | None:
        """What was wrong at the last try; None: it worked."""
        return self._problem

    def is_open(self) -> bool:
        """Report whether the volume may be asked. After a pause one caller may try, and the others wait for it."""
        with self._lock:
            if self._problem is None:
                return True
            now = self._clock()
            if self._problem is Problem.UNUSABLE or now < self._until:
                return False
            self._until = now + _PAUSE_SECONDS
            return True

    def failed(self, problem: Problem) -> None:
        """Leave the volume alone for a while."""
        with self._lock:
            self._problem, self._until = problem, self._clock() + _PAUSE_SECONDS

    def worked(self) -> None:
        """Note that the volume did what was asked."""
        if self._problem is not None:
            with self._lock:
                self._problem = None
