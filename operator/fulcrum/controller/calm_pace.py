"""How often calm clusters are looked at: as often as all others, while there is processor time for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fulcrum.controller.sources import SHOWN_LOAD_SECONDS, TICK_SECONDS
from fulcrum.controller.speeds import ROW_SECONDS
from fulcrum.load.tuning import TUNING

SHARE: Final = 0.6
"""Of a core, up to which calm clusters are looked at as often as all others; the rest is for those in trouble."""
LONGEST_SECONDS: Final = TUNING.memory_seconds / (3 * TUNING.least_seen)
"""The last minutes then have 15 looks. How bursty arrivals are is measured from one look to the next, and takes 10."""
MEASURED_SECONDS: Final = 10.0
"""Over which the use of the processor is measured."""


def loads_every_seconds(every_seconds: float) -> float:
    """Return the time between two load reports of a calm cluster's worker that is looked at every `every_seconds`.

    As speeds are learnt from them and nothing is decided by them, that of one row, and at the longest pace that of
    mode Manual.
    """
    return max(every_seconds, ROW_SECONDS, SHOWN_LOAD_SECONDS * every_seconds / LONGEST_SECONDS)


def busy_seconds() -> float:
    """Return for how long this thread has computed, and has waited for a core to compute on.

    Where other processes take the cores, it is late with little processor time of its own. Not known outside Linux.
    """
    try:
        computed, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return time.thread_time()
    return (int(computed) + int(waited)) / 1e9


class CalmPace:
    """Follows the use of the thread that looks: other threads are not relieved by fewer looks."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used_seconds: Callable[[], float] = busy_seconds
    ) -> None:
        self._clock = clock
        self._clock_of_use = used_seconds
        self._at, self._used_seconds = clock(), used_seconds()
        self._seconds = TICK_SECONDS

    def every_seconds(self, *, calm: bool, most_seconds: float) -> float:
        """Return the time between two looks at one cluster; `most_seconds`: of its forecast, which takes each in."""
        return max(TICK_SECONDS, min(self.seconds(), most_seconds)) if calm else TICK_SECONDS

    def seconds(self) -> float:
        """Return the time between two looks at calm clusters, measured anew from time to time."""
        now = self._clock()
        if now - self._at >= MEASURED_SECONDS:
            used_seconds = self._clock_of_use()
            # What is used goes with the number of looks.
            wanted = self._seconds * (used_seconds - self._used_seconds) / (now - self._at) / SHARE
            self._seconds = min(max(wanted, self._seconds / 2, TICK_SECONDS), 2 * self._seconds, LONGEST_SECONDS)
            self._at, self._used_seconds = now, used_seconds
        return self._seconds
