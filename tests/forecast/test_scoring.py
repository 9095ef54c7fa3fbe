"""The back-test, the choice by it, and the band from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.forecast.histories import Floats

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast.backtest import Backtest, Scores
from fulcrum.forecast.band import upper
from fulcrum.forecast.promise import promised_quantile
from fulcrum.forecast.scale import LogScale
from fulcrum.forecast.selection import best_method

LAST, HOLT, ARIMA = ForecastMethod.LAST_VALUE, ForecastMethod.HOLT_WINTERS, ForecastMethod.ARIMA


def filled(actual: Floats, forecasts: dict[ForecastMethod, Floats], *, origins: int = 500) -> Backtest:
    """A back-test in which each method said `forecasts[method][t]` of interval t + 1, ..., at all steps."""
    backtest = Backtest(methods=tuple(forecasts), steps=3, origins=origins)
    for now, came in enumerate(actual):
        backtest.record({method: np.full(backtest.reach, said[now]) for method, said in forecasts.items()})
        backtest.observe(float(came))
    return backtest


def test_each_step_is_scored_by_what_came_that_many_intervals_later() -> None:
    backtest = Backtest(methods=(LAST,), steps=3, origins=100)
    for now in range(20):
        backtest.record({LAST: np.arange(now + 1, now + 1 + backtest.reach, dtype=np.float64)})
        backtest.observe(now + 1.0)
    for step in (1, 2, 16):
        scores = backtest.scores(LAST, backtest.column(step))
        assert len(scores) == 20 - step + 1
        assert scores.forecast.tolist() == scores.actual.tolist() == list(np.arange(step, 21.0))


def test_what_has_not_come_yet_is_not_scored() -> None:
    backtest = Backtest(methods=(LAST,), steps=1, origins=10)
    backtest.record({LAST: np.ones(backtest.reach)})
    assert len(backtest.scores(LAST, 0)) == 0
    assert backtest.scores(LAST, 0).wape is None
    backtest.observe(2.0)
    assert backtest.scores(LAST, 0).wape == pytest.approx(0.5)


def test_old_origins_are_forgotten() -> None:
    actual = np.arange(1, 101, dtype=np.float64)
    scores = filled(actual, {LAST: actual}, origins=30).scores(LAST, 0)
    assert scores.actual.tolist() == list(np.arange(71.0, 101.0))


def test_gaps_and_absent_methods_are_left_out() -> None:
    actual = np.array([1.0, np.nan, 3.0, 4.0])
    backtest = filled(actual, {LAST: actual, HOLT: np.array([np.nan, 1.0, 3.0, 4.0])})
    assert backtest.scores(LAST, 0).actual.tolist() == [1.0, 3.0, 4.0]
    assert backtest.scores(LAST, 0, like=HOLT).actual.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("steps", [1, 16, 17, 100, 1440])
def test_steps_reach_the_horizon_and_are_few(steps: int) -> None:
    backtest = Backtest(methods=(LAST,), steps=steps, origins=1)
    assert backtest.reach >= steps
    assert backtest.reach <= max(16, 1.15 * steps)
    assert len(backtest.steps) <= 70
    assert backtest.steps[backtest.column(steps)] >= steps


def chosen(errors: dict[ForecastMethod, Floats], *, in_use: ForecastMethod = LAST) -> ForecastMethod:
    """The choice when each method was off by these errors around 10."""
    actual = np.full(len(errors[LAST]), 10.0)
    backtest = filled(actual, {method: actual + off for method, off in errors.items()})
    return best_method(backtest, tuple(errors), 0, in_use=in_use)


def noise(size: float, *, count: int = 200, seed: int = 0) -> Floats:
    return np.asarray(size * np.random.default_rng(seed).normal(size=count))


@pytest.mark.parametrize(
    ("errors", "in_use", "expected"),
    [
        pytest.param({LAST: noise(1), HOLT: noise(0.5, seed=1)}, LAST, HOLT, id="much better"),
        pytest.param({LAST: noise(1), HOLT: noise(2, seed=1)}, LAST, LAST, id="worse"),
        pytest.param({LAST: noise(1), HOLT: noise(1)}, LAST, LAST, id="the same"),
        pytest.param({LAST: noise(1), HOLT: noise(1)}, HOLT, LAST, id="the same, and it is in use"),
        pytest.param({LAST: noise(1), HOLT: 0.98 * noise(1)}, LAST, LAST, id="hardly better"),
        pytest.param({LAST: noise(1), HOLT: 0.98 * noise(1)}, HOLT, HOLT, id="hardly better, and it is in use"),
        pytest.param({LAST: noise(1), HOLT: 0.8 * noise(1), ARIMA: 0.6 * noise(1)}, LAST, ARIMA, id="the best of two"),
        pytest.param({LAST: noise(1), HOLT: 0.80 * noise(1), ARIMA: 0.79 * noise(1)}, HOLT, HOLT, id="loyal"),
        pytest.param({LAST: noise(1), HOLT: 0.80 * noise(1), ARIMA: 0.70 * noise(1)}, HOLT, ARIMA, id="but not blind"),
        pytest.param({LAST: noise(1, count=10), HOLT: noise(0.1, count=10)}, LAST, LAST, id="too little seen"),
        pytest.param({LAST: np.zeros(50), HOLT: np.zeros(50)}, LAST, LAST, id="both perfect"),
        pytest.param({LAST: np.ones(50), HOLT: np.zeros(50)}, LAST, HOLT, id="perfect"),
    ],
)
def test_choice(errors: dict[ForecastMethod, Floats], in_use: ForecastMethod, expected: ForecastMethod) -> None:
    assert chosen(errors, in_use=in_use) is expected


def test_the_band_is_the_conformal_quantile_of_the_errors() -> None:
    # Last value said 10; 1 % to 100 % more came: the rank of the 0.9 quantile is ceil(101 * 0.9) = 91.
    actual = 10.0 * (1 + np.random.default_rng(0).permutation(np.arange(1, 101)) / 100)
    backtest = filled(actual, {LAST: np.full(100, 10.0)})
    above = upper(np.array([10.0]), backtest, LAST, quantile=0.9, scale=LogScale(mean=10.0), interval_seconds=60.0)
    assert above == pytest.approx([19.1])


def test_the_band_is_never_below_the_forecast() -> None:
    backtest = filled(np.full(100, 5.0), {LAST: np.full(100, 10.0)})
    path = np.array([10.0, 10.0])
    above = upper(path, backtest, LAST, quantile=0.9, scale=LogScale(mean=5.0), interval_seconds=60.0)
    assert above.tolist() == pytest.approx([10.0, 10.0])


def promised(forecast: Floats, actual: Floats, *, attainment: float = 0.95) -> float:
    scale = LogScale.of(actual)
    scores = Scores(forecast=forecast, actual=actual, ages=np.arange(len(actual))[::-1])
    return promised_quantile(scores, attainment=attainment, scale=scale)


def test_a_role_whose_requests_are_longer_than_expected_needs_a_higher_quantile() -> None:
    actual = 100 + noise(5)
    scores = Scores(forecast=np.full(200, 100.0), actual=actual, ages=np.arange(200)[::-1])
    exact, long = np.ones(200), np.where(np.arange(200) % 20 == 0, 3.0, 1.0)
    quantiles = [
        promised_quantile(scores, attainment=0.95, scale=LogScale.of(actual), misjudged=[exact, times])
        for times in (exact, long)
    ]
    assert quantiles[0] == 0.5
    assert quantiles[1] > 0.9


@pytest.mark.parametrize("attainment", [0.01, 0.95, 1.0])
def test_before_enough_was_seen_the_quantile_is_one_that_there_is(attainment: float) -> None:
    few = np.full(3, 100.0)
    assert 0.5 <= promised(few, few, attainment=attainment) < 1.0


def test_a_forecast_that_is_hardly_off_needs_no_more_than_its_median() -> None:
    assert promised(np.full(200, 100.0), 100 + noise(2)) == 0.5


def test_the_further_off_a_forecast_is_the_higher_the_quantile() -> None:
    off = np.abs(noise(1))
    quantiles = [promised(np.full(200, 100.0), 100 + size * off) for size in (1, 20, 60, 200)]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] == 0.5
    assert quantiles[-1] > 0.8


def test_the_stricter_the_promise_the_higher_the_quantile() -> None:
    actual = 100 + 20 * np.abs(noise(1))
    quantiles = [promised(np.full(200, 100.0), actual, attainment=promise) for promise in (0.8, 0.9, 0.95, 0.99)]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] < quantiles[-1]


@given(seed=st.integers(0, 2**32 - 1), attainment=st.floats(0.5, 0.999), size=st.floats(0, 2))
def test_at_the_quantile_the_promise_was_kept_and_just_below_it_was_not(
    seed: int, attainment: float, size: float
) -> None:
    rng = np.random.default_rng(seed)
    forecast = rng.uniform(1, 100, size=50)
    actual = forecast * np.exp(size * rng.normal(size=50))
    scale = LogScale(mean=float(actual.mean()))
    errors = np.sort(scale.forward(actual) - scale.forward(forecast))
    rank = round(promised(forecast, actual, attainment=attainment) * 51)

    def missed(of: int) -> float:
        planned = scale.backward(scale.forward(forecast) + max(float(errors[of - 1]), 0.0))
        return float(np.maximum(actual - planned, 0).sum() / actual.sum())

    allowed = (1 - attainment) / 2
    assert rank == 50 or missed(rank) <= allowed + 1e-9
    assert rank <= 26 or missed(rank - 1) > allowed


def test_before_enough_was_seen_it_is_the_promise() -> None:
    assert promised(np.ones(5), np.ones(5), attainment=0.9) == 0.9
    assert promised(np.ones(5), np.ones(5), attainment=0.3) == 0.5


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_a_constant_load_needs_no_quantile(rate: float) -> None:
    assert promised(np.full(50, rate), np.full(50, rate)) == 0.5
