"""When load comes back, learnt from earlier days."""

from __future__ import annotations

import numpy as np
import pytest

from fulcrum.forecast.recurrence import next_load_seconds
from fulcrum.forecast.series import LoadSeries

DAY = 24
"""Intervals of an hour: load may come one of them earlier than before."""


def days(*busy: set[int], until: int = DAY, unknown: frozenset[int] = frozenset()) -> LoadSeries:
    """Days with load in these hours; the last one only up to `until`. NaN in the hours that are `unknown`."""
    rate = np.array([1.0 if hour in day else 0.0 for day in busy for hour in range(DAY)])
    rate = rate[: len(rate) - DAY + until]
    for hour in unknown:
        rate[hour] = np.nan
    nothing = np.full(len(rate), np.nan)
    return LoadSeries(interval_seconds=3600.0, end_seconds=0.0, rate=rate, isl_tokens=nothing, osl_tokens=nothing)


WORK = {8, 9, 10, 11, 12, 13, 14, 15, 16}


@pytest.mark.parametrize(
    ("series", "hours"),
    [
        (days(WORK, WORK, WORK, WORK, until=0), 7),  # midnight: an hour before the time of the days before
        (days(WORK, WORK, WORK, WORK, until=7), 0),
        (days(WORK, WORK, WORK, WORK, until=12), 0),
        (days(WORK, WORK, WORK, WORK, until=17), 14),  # the evening: not before the next morning
        (days(WORK, until=17), 14),  # the first evening
        (days({8}, {10}, {9}, set(), until=0), 8),  # it comes a little earlier or later: most days had some by 9
        (days(WORK, WORK, {3}, set(), until=0), 7),  # one stray request is no habit
        (days(WORK, {3, *WORK}, {3, *WORK}, set(), until=0), 2),
        (days(set(), set(), set(), until=5), None),
        (days(WORK, WORK, set(), until=0, unknown=frozenset(range(DAY))), 7),  # a day without measurements has no vote
    ],
)
def test_when_load_comes_back(series: LoadSeries, hours: int | None) -> None:
    assert next_load_seconds(series, season_seconds=DAY * 3600.0) == (None if hours is None else hours * 3600.0)


def test_no_history_says_nothing() -> None:
    assert next_load_seconds(days(set(), until=0), season_seconds=DAY * 3600.0) is None
