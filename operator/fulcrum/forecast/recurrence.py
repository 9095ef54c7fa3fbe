"""When load comes back: the time of day at which it came on earlier days."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.forecast.intervals import cleaned
from fulcrum.forecast.series import LoadSeries

EARLY_SHARE: Final = 1 / 24
"""Share of a season by which load may come earlier than before: an hour of a day. Peaks move that much with daylight
saving time and with work shifts."""


def next_load_seconds(series: LoadSeries, *, season_seconds: float) -> float | None:
    """Return the seconds from the end of `series` until load is expected; 0: now, None: not within a season.

    Load is expected where at least half of the seasons in the history had any, up to an hour (of a day) later.
    """
    period = round(season_seconds / series.interval_seconds)
    rate = cleaned(series.rate)
    if period < 1 or len(rate) < 2:
        return None
    early = max(1, round(EARLY_SHARE * period))
    busy = _within_next(np.nan_to_num(rate) > 0, early)
    known = _within_next(np.isfinite(rate), 0)
    seasons = -(-len(rate) // period)
    votes, voters = np.zeros(period), np.zeros(period)
    for season in range(1, seasons + 1):
        places = len(rate) - season * period + np.arange(period)
        seen = places >= 0
        votes[seen] += busy[places[seen]]
        voters[seen] += known[places[seen]] | busy[places[seen]]
    # Half of the known seasons, so that one stray request wakes no later night.
    expected = np.flatnonzero((votes > 0) & (2 * votes >= voters))
    return float(expected[0]) * series.interval_seconds if len(expected) else None


def _within_next(flags: NDArray[np.bool_], intervals: int) -> NDArray[np.bool_]:
    """Return for each interval whether a flag is set in it or in the next `intervals`."""
    count = np.concatenate(([0], np.cumsum(flags)))
    ends = np.minimum(np.arange(len(flags)) + intervals + 1, len(flags))
    within: NDArray[np.bool_] = count[ends] - count[:-1] > 0
    return within
