"""The last hour of one cluster, in a ring of fixed size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

SERIES: Final = (
    "prefill", "decode", "mixed", "prefill_target", "decode_target", "mixed_target",
    "rate", "forecast", "upper", "attainment", "rejected",
)  # fmt: skip
"""Figures of a point, in the order in which the page receives them after the time."""
SAMPLE_SECONDS: Final = 10.0
"""Time between two points: operators publish figures every 15 s, and a chart has about 360 pixels on a phone."""
POINTS: Final = 360
"""An hour of points: 19 kB a cluster, so a thousand clusters take 19 MB of the operator's 512."""

Point = tuple[float | None, ...]
"""Unix time in seconds, then SERIES; None is unknown."""


class History:
    """A ring of points; nothing is allocated for points that were not taken yet."""

    def __init__(self, *, points: int = POINTS) -> None:
        self._most = points
        self._times: array[float] = array("d")
        self._figures: array[float] = array("f")
        self._next = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, time_seconds: float, figures: Mapping[str, float | None]) -> None:
        """Keep a point, in place of the oldest one when the ring is full."""
        values = [math.nan if (figure := figures.get(name)) is None else figure for name in SERIES]
        if len(self._times) < self._most:
            self._times.append(time_seconds)
            self._figures.extend(values)
            return
        self._times[self._next] = time_seconds
        self._figures[self._next * len(SERIES) : (self._next + 1) * len(SERIES)] = array("f", values)
        self._next = (self._next + 1) % self._most

    def since(self, time_seconds: float) -> list[Point]:
        """Return the points after a moment, oldest first."""
        order = (*range(self._next, len(self._times)), *range(self._next))
        return [self._point(place) for place in order if self._times[place] > time_seconds]

    def last(self, name: str, count: int) -> list[float | None]:
        """Return the last `count` values of one series, oldest first."""
        column, held = SERIES.index(name), len(self._times)
        places = ((self._next + place) % held for place in range(max(0, held - count), held))
        return [_known(self._figures[place * len(SERIES) + column]) for place in places]

    def _point(self, place: int) -> Point:
        figures = self._figures[place * len(SERIES) : (place + 1) * len(SERIES)]
        return round(self._times[place], 1), *map(_known, figures)


def _known(figure: float) -> float | None:
    return None if math.isnan(figure) else float(f"{figure:.4g}")
