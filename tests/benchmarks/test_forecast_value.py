"""What `benchmarks/forecast_value.py` calls foresight, and when it says that a forecast does not pay."""

from __future__ import annotations

import numpy as np
import pytest
from forecast_value import INTERVAL_SECONDS, Off, Perfect, Row, loads, series_of, targets

from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.workload import Workload


@pytest.fixture(scope="module")
def load() -> Workload:
    lengths = LogNormalLengths(prompt_mean=100, output_mean=20, prompt_spread=0.5, output_spread=0.5)
    return stream(rate=constant(3), lengths=lengths, seconds=600, seed=1)


def row(inside: float, gpu_hours: float) -> Row:
    return Row(inside=inside, gpu_hours=gpu_hours, good=1000 * inside, last_values=0.0, quantile=0.9)


def test_a_series_has_all_requests_and_tokens(load: Workload) -> None:
    series = series_of(load)
    assert series.rate.sum() * INTERVAL_SECONDS == len(load)
    assert np.nansum(series.rate * series.osl_tokens) * INTERVAL_SECONDS == pytest.approx(load.output_tokens.sum())


def test_foresight_is_what_comes_next(load: Workload) -> None:
    series = series_of(load.between(0, 240), end_seconds=240.0)
    forecast = Perfect(load).update(series, horizon_seconds=122)
    assert forecast is not None
    assert forecast.upper_rate == tuple(series_of(load).rate[4:7])
    assert Off().update(series, horizon_seconds=122) is None


def test_history_is_as_long_as_its_seasons() -> None:
    for each in loads():
        if each.begin_seconds:
            whole = each.make(1)
            assert len(series_of(whole.between(0, each.begin_seconds)).rate) == each.begin_seconds / INTERVAL_SECONDS


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        ({"auto": row(0.96, 10), "reactive": row(0.96, 10), "promise": row(0.95, 9)}, [True, True]),
        ({"auto": row(0.96, 10.5), "reactive": row(0.96, 10)}, [False]),
        ({"auto": row(0.99, 10), "promise": row(0.945, 8)}, [True]),
        ({"auto": row(0.99, 10), "promise": row(0.93, 8)}, [False]),
        ({"auto": row(0.90, 10), "promise": row(0.895, 8)}, [True]),
        ({"auto": row(0.90, 10), "promise": row(0.88, 8)}, [False]),
        ({"off": row(0.90, 10)}, []),
    ],
)
def test_targets(rows: dict[str, Row], met: list[bool]) -> None:
    assert [each for _, each in targets({"load": rows})] == met
