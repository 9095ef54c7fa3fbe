"""Histograms that cost little to observe. Compiled (hatch_build.py)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily

PREFIX: Final = "fulcrum_gateway_"
"""Of every metric's name."""


class Histogram:
    """Cumulative on scrape, one list update per observation."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """As Prometheus wants it."""
        return HistogramMetricFamily(
            PREFIX + name,
            documentation,
            buckets=[(bound, float(total)) for bound, total in self._cumulative()],
            sum_value=self._sum,
        )

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The same as text; `labels` are `name="value"` pairs."""
        total = 0
        for bound, total in self._cumulative():
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}\n'
        yield f"{name}_count{{{labels}}} {total}\n{name}_sum{{{labels}}} {self._sum!r}\n"

    def _cumulative(self) -> Iterator[tuple[str, int]]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total
