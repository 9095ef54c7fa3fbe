"""A rolling-origin back-test: forecasts as they were made, scored against what then came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast.model import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Forecasts of one method at one step and what came, pairwise, oldest first; without gaps."""

    forecast: Floats
    actual: Floats
    ages: np.ndarray[tuple[int], np.dtype[np.int64]]
    """How many intervals ago each came; 0: the newest."""

    def __len__(self) -> int:
        return len(self.actual)

    @property
    def wape(self) -> float | None:
        """Sum of absolute errors as a share of the sum that came; None where nothing came or was scored."""
        total = float(self.actual.sum())
        return float(np.abs(self.actual - self.forecast).sum()) / total if total > 0 else None


class Backtest:
    """The last `origins` forecasts of each method at some steps, in rings."""

    def __init__(self, *, methods: tuple[ForecastMethod, ...], steps: int, origins: int) -> None:
        self.steps = _scored_steps(steps)
        """Steps that are scored, rising; the last one is at least the `steps` asked for."""
        self.reach: int = int(self.steps[-1])
        self._origins = origins
        self._size = origins + self.reach
        self._forecasts = {method: np.full((self._size, len(self.steps)), np.nan) for method in methods}
        self._actual = np.full(self._size, np.nan)
        """What came in the interval right after the origin."""
        self._count = 0
        """Origins so far; the last one's actual has not come yet."""

    def record(self, paths: Mapping[ForecastMethod, Floats]) -> None:
        """The forecasts made now, each of `reach` steps; a method without one is not scored from this origin."""
        row = self._count % self._size
        for method, forecasts in self._forecasts.items():
            path = paths.get(method)
            forecasts[row] = np.nan if path is None else path[self.steps - 1]
        self._actual[row] = np.nan
        self._count += 1

    def observe(self, rate: float) -> None:
        """What came in the interval after the last origin; NaN is a gap."""
        if self._count:
            self._actual[(self._count - 1) % self._size] = rate

    def column(self, step: int) -> int:
        """Which of `steps` stands for `step`: the first that is not nearer."""
        return int(np.searchsorted(self.steps, step))

    def scores(self, method: ForecastMethod, column: int, *, like: ForecastMethod | None = None) -> Scores:
        """What `method` said at `steps[column]`, only from origins at which `like` said something too."""
        step = int(self.steps[column])
        last = self._count - step
        origins = np.arange(max(0, self._count - self._size, last + 1 - self._origins), last + 1)
        forecast = self._forecasts[method][origins % self._size, column]
        actual = self._actual[(origins + step - 1) % self._size]
        known = np.isfinite(forecast) & np.isfinite(actual)
        if like is not None:
            known &= np.isfinite(self._forecasts[like][origins % self._size, column])
        ages = self._count - 1 - step - origins
        return Scores(forecast=forecast[known], actual=actual[known], ages=ages[known])


def _scored_steps(steps: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Each of the first 16 steps, further out about eight of each doubling."""
    scored = list(range(1, 17))
    while scored[-1] < steps:
        scored.append(scored[-1] + max(1, scored[-1] // 8))
    return np.array(scored, dtype=np.int64)
