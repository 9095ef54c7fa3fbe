"""The load of one cluster over hours, in bounded memory: the last minutes in detail, before that rates and lengths."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.forecast.series import LoadSeries
from fulcrum.telemetry.counts import ARRIVALS, OUTPUT, PROMPT, Counts, Key

_DETAIL_SECONDS: Final = 900.0
_KNOWN_SHARE: Final = 0.5
"""Share of an interval that must have been measured; below it the interval is a gap."""
_KEPT_SECONDS: Final = 2 * 86400.0
_MOST_CELLS: Final = 34_560
"""Two days of 5 s each: 0.8 MB a cluster."""
_UNEVEN: Final = 0.25
"""Spans that differ from the usual length by this share are not compared."""
_KEYS: Final = (
    Key(ARRIVALS),
    Key(f"{PROMPT}_sum"),
    Key(f"{PROMPT}_count"),
    Key(f"{OUTPUT}_sum"),
    Key(f"{OUTPUT}_count"),
)
_COVERED: Final = len(_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What all gateways counted together over a span of time."""

    start_seconds: float
    end_seconds: float
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A slice in little room: numbers in a row, and where each counter is; slices of the same counters share that."""

    start_seconds: float
    end_seconds: float
    places: Mapping[Key, int]
    values: array[float]

    def counts(self) -> Counts:
        return dict(zip(self.places, self.values, strict=True))

    def count(self, key: Key) -> float:
        place = self.places.get(key)
        return 0.0 if place is None else self.values[place]


class LoadHistory:
    """History of one cluster: cells hold five sums and the seconds that were measured.

    Cells are as long as the usual interval of forecasts: two days of minutes take 69 kB, and nothing before the first
    slice, so that a thousand clusters fit. The counts of the last minutes are kept in full.
    """

    def __init__(self, *, cells: int | None = None, cell_seconds: float = 60.0) -> None:
        """`cells`: how many; None: as many as two days have, but no more than 34,560."""
        self.cell_seconds = cell_seconds
        self._count = min(_MOST_CELLS, math.ceil(_KEPT_SECONDS / cell_seconds)) if cells is None else cells
        self._cells: NDArray[np.float32] = np.zeros((0, _COVERED + 1), dtype=np.float32)
        self._newest = -1
        """Number of the newest cell: its time divided by the length of a cell."""
        self._slices: deque[_Kept] = deque()

    def fits(self, interval_seconds: float) -> bool:
        """Report whether intervals of this length are made of whole cells."""
        return interval_seconds % self.cell_seconds == 0

    def refined(self, cell_seconds: float) -> LoadHistory:
        """Return one with other cells that begins with what is known in detail."""
        history = LoadHistory(cell_seconds=cell_seconds)
        for kept in self._slices:
            history.put(Slice(start_seconds=kept.start_seconds, end_seconds=kept.end_seconds, counts=kept.counts()))
        return history

    def put(self, piece: Slice) -> None:
        """Add a slice; they come in the order of time and do not overlap."""
        self._slices.append(self._kept(piece))
        while self._slices[0].end_seconds < piece.end_seconds - _DETAIL_SECONDS:
            self._slices.popleft()
        seconds = piece.end_seconds - piece.start_seconds
        values = np.array([*(piece.counts.get(key, 0.0) for key in _KEYS), seconds])
        first, last = int(piece.start_seconds // self.cell_seconds), int(piece.end_seconds // self.cell_seconds)
        self._advance(last)
        for cell in range(max(first, last - self._count + 1), last + 1):
            start = max(piece.start_seconds, cell * self.cell_seconds)
            end = min(piece.end_seconds, (cell + 1) * self.cell_seconds)
            if end > start:
                self._cells[cell % self._count] += (values * ((end - start) / seconds)).astype(np.float32)

    def _kept(self, piece: Slice) -> _Kept:
        places: Mapping[Key, int] = self._slices[-1].places if self._slices else {}
        if list(places) != list(piece.counts):
            places = {key: place for place, key in enumerate(piece.counts)}
        return _Kept(
            start_seconds=piece.start_seconds,
            end_seconds=piece.end_seconds,
            places=places,
            values=array("d", piece.counts.values()),
        )

    def _advance(self, cell: int) -> None:
        """Empty the cells that time has reached since the last slice."""
        if not len(self._cells):
            self._cells = np.zeros((self._count, _COVERED + 1), dtype=np.float32)
        first = max(self._newest + 1, cell - self._count + 1)
        if first <= cell:
            self._cells[np.arange(first, cell + 1) % self._count] = 0.0
        self._newest = max(self._newest, cell)

    def recent(self, *, window_seconds: float, now: float, keys: Collection[Key] | None = None) -> tuple[Counts, float]:
        """Return the counts of the last `window_seconds`, and how many seconds of them were measured.

        `keys`: only these.
        """
        (counts,), (covered_seconds,) = self._between([(now - window_seconds, now)], keys)
        return counts, covered_seconds

    def between(self, spans: Sequence[tuple[float, float]], keys: Collection[Key]) -> list[Counts]:
        """Return the counts of these keys in each of the spans (begin, end)."""
        return self._between(spans, keys)[0]

    def _between(
        self, spans: Sequence[tuple[float, float]], keys: Collection[Key] | None
    ) -> tuple[list[Counts], list[float]]:
        """Return the counts, and the seconds that were measured, in each of the spans."""
        begin, end = (np.array(side)[:, None] for side in zip(*spans, strict=True))
        pieces = list(takewhile(lambda piece: piece.end_seconds > begin.min(), reversed(self._slices)))
        found: list[Counts] = [{} for _ in spans]
        covered = np.zeros(len(spans))
        for _, group in groupby(pieces, key=lambda piece: id(piece.places)):
            alike = list(group)
            columns = {key: place for key, place in alike[0].places.items() if keys is None or key in keys}
            starts = np.array([piece.start_seconds for piece in alike])
            ends = np.array([piece.end_seconds for piece in alike])
            seconds = np.maximum(np.minimum(end, ends) - np.maximum(begin, starts), 0.0)
            values = np.array([piece.values for piece in alike])[:, list(columns.values())]
            # No matrix product: its rounding differs from machine to machine.
            sums = (values * (seconds / (ends - starts))[:, :, None]).sum(axis=1)
            for counts, row, there in zip(found, sums.tolist(), seconds.any(axis=1), strict=True):
                if there:
                    for key, value in zip(columns, row, strict=True):
                        counts[key] = counts.get(key, 0.0) + value
            covered += seconds.sum(axis=1)
        return found, covered.tolist()

    def spans(self, window_seconds: float, *, now: float) -> list[float]:
        """Return the arrivals between each two scrapes of the last `window_seconds` that were about as far apart."""
        pieces = [piece for piece in self._slices if now - window_seconds <= piece.start_seconds < now]
        lengths = [piece.end_seconds - piece.start_seconds for piece in pieces]
        usual = float(np.median(lengths)) if lengths else 0.0
        alike = zip(pieces, lengths, strict=True)
        arrivals = Key(ARRIVALS)
        return [piece.count(arrivals) for piece, length in alike if abs(length - usual) <= _UNEVEN * usual]

    def series(self, *, interval_seconds: float, history_seconds: float, now: float) -> LoadSeries | None:
        """Return the whole intervals up to `now` from the first measured one on; None before there is one.

        Intervals are not shorter than a cell.
        """
        end_seconds = math.floor(now / interval_seconds) * interval_seconds
        kept = np.arange(max(0, self._newest - self._count + 1), self._newest + 1)
        intervals = int(history_seconds // interval_seconds)
        if not len(kept) or intervals < 1:
            return None
        middles = (kept + 0.5) * self.cell_seconds
        places = np.floor((middles - end_seconds) / interval_seconds).astype(np.int64) + intervals
        inside = (places >= 0) & (places < intervals)
        folded = np.zeros((intervals, _COVERED + 1))
        np.add.at(folded, places[inside], self._cells[kept[inside] % self._count])
        covered = folded[:, _COVERED]
        known = covered >= _KNOWN_SHARE * interval_seconds
        if not known.any():
            return None
        first = int(np.argmax(known))
        folded, covered, known = folded[first:], covered[first:], known[first:]
        return LoadSeries(
            interval_seconds=interval_seconds,
            end_seconds=end_seconds,
            rate=_divide(folded[:, 0], covered, known),
            isl_tokens=_divide(folded[:, 1], folded[:, 2], known),
            osl_tokens=_divide(folded[:, 3], folded[:, 4], known),
        )


def _divide(part: NDArray[np.float64], whole: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Part by whole; NaN where that is nothing or unknown."""
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=known & (whole > 0))
    return result
