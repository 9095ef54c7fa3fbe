"""How often calm clusters are looked at: as often as all others, while there is processor time for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fulcrum.controller.sources import TICK_SECONDS
from fulcrum.load.tuning import TUNING

SHARE: Final = 0.6
"""Of a core, up to which calm clusters are looked at as often as all others; the rest is for those in trouble."""
LONGEST_SECONDS: Final = TUNING.memory_seconds / (3 * TUNING.least_seen)
"""The last minutes then have 15 looks. How bursty arrivals are is measured from one look to the next, and takes 10."""
MEASURED_SECONDS: Final = 10.0
"""Over which the use of the processor is measured."""


class CalmPace:
    """Follows the processor time of the thread that looks: other threads are not relieved by fewer looks."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_seconds: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._at, self._used_seconds = clock(), cpu_seconds()
        self._seconds = TICK_SECONDS

    def every_seconds(self, *, calm: bool, most_seconds: float) -> float:
        """Return the time between two looks at one cluster; `most_seconds`: of its forecast, which takes each in."""
        return max(TICK_SECONDS, min(self.seconds(), most_seconds)) if calm else TICK_SECONDS

    def seconds(self) -> float:
        """Return the time between two looks at calm clusters, measured anew from time to time."""
        now = self._clock()
        if now - self._at >= MEASURED_SECONDS:
            used_seconds = self._cpu_seconds()
            # What is used goes with the number of looks.
            wanted = self._seconds * (used_seconds - self._used_seconds) / (now - self._at) / SHARE
            self._seconds = min(max(wanted, self._seconds / 2, TICK_SECONDS), 2 * self._seconds, LONGEST_SECONDS)
            self._at, self._used_seconds = now, used_seconds
        return self._seconds
