"""Whether one history continues another, and what of it can be measured load at all."""

from __future__ import annotations

from typing import Final

import numpy as np

from fulcrum.forecast.model import Floats
from fulcrum.forecast.series import LoadSeries

_MOST_RATE: Final = 1e12
"""Requests per second; what is above is a broken counter, and what is below one in so many seconds is none."""


def cleaned(rate: Floats) -> Floats:
    """Rates with NaN where nothing credible was measured: infinite, negative or beyond any load."""
    with np.errstate(invalid="ignore"):
        credible = (rate >= 0) & (rate <= _MOST_RATE)
    return np.where(credible, np.where(rate < 1 / _MOST_RATE, 0.0, rate), np.nan)


def new_intervals(before: LoadSeries, now: LoadSeries) -> int | None:
    """How many intervals `now` has at its end that `before` had not; None when it does not continue `before`.

    A continuation has the same interval, overlaps, and mostly agrees within 1 % where both measured: a source may
    revise a few values, but a restarted or renamed one tells of another load.
    """
    if before.interval_seconds != now.interval_seconds:
        return None
    exact = (now.end_seconds - before.end_seconds) / now.interval_seconds
    # The end may be off the grid of the series before by a quarter of an interval: scrapes come late.
    if not 0 <= round(exact) < len(now) or abs(exact - round(exact)) > 0.25:
        return None
    new = round(exact)
    overlap = min(len(now) - new, len(before))
    old = cleaned(before.rate[len(before) - overlap :])
    same = cleaned(now.rate[len(now) - new - overlap : len(now) - new])
    both = np.isfinite(old) & np.isfinite(same)
    agree = np.abs(old[both] - same[both]) <= 0.01 * np.maximum(old[both], same[both])
    return new if 2 * np.count_nonzero(agree) >= len(agree) else None
