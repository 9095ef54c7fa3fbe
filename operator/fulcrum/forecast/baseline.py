"""The methods that every other has to beat: last value and seasonal naive."""

from __future__ import annotations

import numpy as np

from fulcrum.forecast.model import Budget, Floats


class LastValue:
    """The next intervals are like the last measured one."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def advance(self, rate: float) -> None:
        if np.isfinite(rate):
            self._rate = rate

    def path(self, steps: int) -> Floats:
        return np.full(steps, self._rate)


class SeasonalNaive:
    """The next intervals are like the same intervals of the last season in which they were measured."""

    def __init__(self, rate: Floats, season_intervals: int) -> None:
        self._season = np.full(season_intervals, np.nan)
        measured = np.flatnonzero(np.isfinite(rate))
        # numpy assigns in order, so that a later season overwrites an earlier one.
        self._season[measured % season_intervals] = rate[measured]
        self._slot = len(rate) % season_intervals
        self._last = LastValue(float(rate[measured[-1]]))

    def advance(self, rate: float) -> None:
        if np.isfinite(rate):
            self._season[self._slot] = rate
        self._last.advance(rate)
        self._slot = (self._slot + 1) % len(self._season)

    def path(self, steps: int) -> Floats:
        seen = self._season[(self._slot + np.arange(steps)) % len(self._season)]
        return np.where(np.isfinite(seen), seen, self._last.path(steps))


def fit_last_value(rate: Floats, *, season_intervals: float, budget: Budget) -> LastValue:  # noqa: ARG001 # is a Fit
    """See `model.Fit`."""
    return LastValue(float(rate[np.isfinite(rate)][-1]))


def fit_seasonal_naive(
    rate: Floats,
    *,
    season_intervals: float,
    budget: Budget,  # noqa: ARG001 # is a Fit
) -> SeasonalNaive | None:
    """See `model.Fit`; None before one season is there."""
    whole = round(season_intervals)
    if whole < 2 or len(rate) < whole or np.count_nonzero(np.isfinite(rate[-whole:])) < whole / 2:
        return None
    return SeasonalNaive(rate, whole)
