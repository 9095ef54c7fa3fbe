"""Histograms that cost little to observe. Compiled (hatch_build.py)."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import Exemplar, HistogramMetricFamily

PREFIX: Final = "fulcrum_gateway_"
"""Of every metric's name."""


class Histogram:
    """Cumulative on scrape, one list update per observation; of each bucket the last exemplar is kept."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        """By the place of the bucket."""
        self._sum = 0.0

    def observe(self, value: float, trace_id: str = "") -> None:
        """`trace_id`: of the request, where it is traced."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._sum += value
        if trace_id:
            self._exemplars[place] = Exemplar({"trace_id": trace_id}, value, time.time())

    def family(self, name: str, documentation: str, *, exemplars: bool = False) -> HistogramMetricFamily:
        """As Prometheus wants it."""
        family = HistogramMetricFamily(
            PREFIX + name,
            documentation,
            buckets=[(bound, float(total)) for bound, total in self._cumulative()],
            sum_value=self._sum,
        )
        if exemplars:
            for place, exemplar in self._exemplars.items():
                family.samples[place] = family.samples[place]._replace(exemplar=exemplar)
        return family

    def lines(self, name: str, labels: str, *, exemplars: bool = False) -> Iterator[str]:
        """The same as text; `labels` are `name="value"` pairs."""
        total = 0
        for place, (bound, total) in enumerate(self._cumulative()):
            exemplar = self._exemplars.get(place) if exemplars else None
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}{_text(exemplar)}\n'
        yield f"{name}_count{{{labels}}} {total}\n{name}_sum{{{labels}}} {self._sum!r}\n"

    def _cumulative(self) -> Iterator[tuple[str, int]]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total


def _text(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.labels["trace_id"]}"}} {exemplar.value!r} {exemplar.timestamp:.3f}'
