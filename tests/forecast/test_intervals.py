"""Whether one history continues another."""

from __future__ import annotations

import numpy as np
import pytest
from tests.forecast.histories import drifting, series_of

from fulcrum.forecast.intervals import cleaned, new_intervals
from fulcrum.forecast.series import LoadSeries

NAN = float("nan")
RATE = drifting(120)
BEFORE = series_of(RATE[:100])


def revised(share: float) -> LoadSeries:
    rate = RATE[:101].copy()
    rate[: int(share * 101)] *= 1.5
    return series_of(rate)


@pytest.mark.parametrize(
    ("now", "new"),
    [
        pytest.param(BEFORE, 0, id="the same"),
        pytest.param(series_of(RATE[:103]), 3, id="longer"),
        pytest.param(series_of(RATE[3:103], end_seconds=6180.0), 3, id="moved"),
        pytest.param(series_of(RATE[98:103], end_seconds=6180.0), 3, id="a short window"),
        pytest.param(series_of(RATE[:101], end_seconds=6066.0), 1, id="a jittering clock"),
        pytest.param(series_of(RATE[:101], end_seconds=6090.0), None, id="off the grid"),
        pytest.param(series_of(RATE[:99]), None, id="the clock went back"),
        pytest.param(series_of(RATE[103:120], end_seconds=7200.0), None, id="no overlap"),
        pytest.param(series_of(RATE[:100], interval_seconds=30.0, end_seconds=6000.0), None, id="another interval"),
        pytest.param(revised(0.2), 1, id="some values revised"),
        pytest.param(revised(0.9), None, id="another load"),
        pytest.param(series_of([]), None, id="empty"),
    ],
)
def test_new_intervals(now: LoadSeries, new: int | None) -> None:
    assert new_intervals(BEFORE, now) == new


def test_gaps_neither_agree_nor_disagree() -> None:
    rate = RATE[:102].copy()
    rate[:95] = NAN
    assert new_intervals(BEFORE, series_of(rate)) == 2


def test_cleaned() -> None:
    found = cleaned(np.array([1.0, 0.0, -1.0, NAN, np.inf, 1e13, 1e-300]))
    assert found == pytest.approx([1.0, 0.0, NAN, NAN, NAN, NAN, 0.0], nan_ok=True)
