"""The highest of a stream of figures since a moment that is asked for."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

_LONGEST: Final = 512


class Peaks:
    """Figures with their times; kept are those that no later one exceeds: each is the highest since its time."""

    __slots__ = ("_figures", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._figures: list[float] = []

    def add(self, figure: float, now_seconds: float) -> None:
        """One more, not earlier than the last one."""
        times, figures = self._times, self._figures
        while figures and figures[-1] <= figure:
            figures.pop()
            times.pop()
        times.append(now_seconds)
        figures.append(figure)
        if len(times) > _LONGEST:
            del times[: _LONGEST // 2], figures[: _LONGEST // 2]

    def since(self, seconds: float) -> float:
        """Return the highest from `seconds` on; 0 where there was none."""
        place = bisect_left(self._times, seconds)
        return self._figures[place] if place < len(self._figures) else 0.0
