"""The forecaster from outside: defined answers, fallbacks, the moving window, and what holds for any history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forecast.histories import Floats, drifting, seasonal, series_of

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast import forecaster as forecaster_module
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries

NAN = float("nan")
METHODS = tuple(ForecastMethod)


def forecaster(
    method: ForecastMethod = ForecastMethod.AUTO,
    *,
    season_intervals: int = 48,
    clock: Callable[[], float] = lambda: 0.0,
    quantile: float = 0.9,
) -> Forecaster:
    return Forecaster(method=method, season_seconds=60.0 * season_intervals, quantile=quantile, clock=clock)


def made(rate: object, *, method: ForecastMethod = ForecastMethod.AUTO, steps: int = 3) -> Forecast:
    forecast = forecaster(method).update(series_of(rate), horizon_seconds=60.0 * steps)  # type: ignore[arg-type]
    assert forecast is not None
    check(forecast, steps)
    return forecast


def check(forecast: Forecast, steps: int) -> None:
    """What every forecast must be."""
    assert forecast.method is not ForecastMethod.AUTO
    assert len(forecast.rate) == len(forecast.upper_rate) == steps
    assert np.isfinite(forecast.rate).all()
    assert np.isfinite(forecast.upper_rate).all()
    assert min(forecast.rate) >= 0
    assert all(above >= rate for above, rate in zip(forecast.upper_rate, forecast.rate, strict=True))
    for tokens in (forecast.isl_tokens, forecast.osl_tokens):
        assert tokens is None or (len(tokens) == steps and np.isfinite(tokens).all() and min(tokens) >= 0)
    for error in (forecast.error, forecast.error_against_last_value):
        assert error is None or (np.isfinite(error) and error >= 0)


def moving(rate: Floats, first: int, window: int) -> Iterator[LoadSeries]:
    """The histories that a source with a window would give, one interval after the other."""
    for end in range(first, len(rate) + 1):
        yield series_of(rate[max(0, end - window) : end], end_seconds=60.0 * end)


@pytest.mark.parametrize("rate", [[], [NAN], [NAN] * 50, [-1.0, float("inf"), NAN]])
def test_nothing_measured_is_no_forecast(rate: list[float]) -> None:
    assert forecaster().update(series_of(rate), horizon_seconds=120) is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        pytest.param([3.0], 3.0, id="one point"),
        pytest.param([0.0], 0.0, id="one point, zero"),
        pytest.param([NAN, 3.0, NAN], 3.0, id="one point in gaps"),
        pytest.param([2.0, 3.0], 3.0, id="two points"),
        pytest.param([5.0] * 200, 5.0, id="constant"),
        pytest.param([0.0] * 200, 0.0, id="constant zero"),
        pytest.param([5.0, NAN, NAN] * 60, 5.0, id="constant with gaps"),
        pytest.param([5.0] * 100 + [NAN] * 40, 5.0, id="constant, then nobody measured"),
    ],
)
def test_plain_histories_are_carried_on(rate: list[float], expected: float, method: ForecastMethod) -> None:
    assert made(rate, method=method).rate == pytest.approx([expected] * 3)


def test_a_constant_load_needs_no_allowance() -> None:
    assert made([5.0] * 200).upper_rate == pytest.approx([5.0] * 3)


def test_a_short_history_allows_for_the_noise_of_counting() -> None:
    # 6 requests/s over 60 s are 360 requests, whose standard deviation is about 19.
    assert made([6.0]).upper_rate == pytest.approx([6 + 1.2816 * np.sqrt(360) / 60] * 3, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_spikes_are_survived(method: ForecastMethod) -> None:
    rate = seasonal(300)
    rate[[50, 120, 121, 250]] = 1e6
    forecast = made(rate, method=method)
    assert max(forecast.rate) <= 4e6


@pytest.mark.parametrize("method", METHODS)
def test_gaps_are_not_zero(method: ForecastMethod) -> None:
    rate = drifting(300)
    rate[np.random.default_rng(3).random(300) < 0.3] = NAN
    rate[120:160] = NAN
    last = rate[np.isfinite(rate)][-1]
    assert min(made(rate, method=method).rate) > 0.5 * last


def test_gaps_do_not_shift_the_season() -> None:
    rate = seasonal(480, noise=0.02)
    whole = made(rate, method=ForecastMethod.ARIMA, steps=12)
    rate[np.random.default_rng(4).random(480) < 0.2] = NAN
    rate[300:330] = NAN
    assert made(rate, method=ForecastMethod.ARIMA, steps=12).rate == pytest.approx(whole.rate, rel=0.1)


@pytest.mark.parametrize("method", [m for m in METHODS if m is not ForecastMethod.AUTO])
def test_the_chosen_method_is_used(method: ForecastMethod) -> None:
    assert made(seasonal(300), method=method).method is method


@pytest.mark.parametrize(
    ("method", "length", "used"),
    [
        (ForecastMethod.ARIMA, 16, ForecastMethod.HOLT_WINTERS),
        (ForecastMethod.ARIMA, 5, ForecastMethod.LAST_VALUE),
        (ForecastMethod.HOLT_WINTERS, 5, ForecastMethod.LAST_VALUE),
        (ForecastMethod.SEASONAL_NAIVE, 30, ForecastMethod.LAST_VALUE),
    ],
)
def test_a_history_too_short_for_a_method_is_no_failure(
    method: ForecastMethod, length: int, used: ForecastMethod
) -> None:
    source = forecaster(method)
    forecast = source.update(series_of(seasonal(length)), horizon_seconds=60)
    assert forecast is not None
    assert forecast.method is used
    assert not source.fallbacks


def test_a_fit_that_takes_too_long_falls_back_and_is_counted() -> None:
    ticks = count()
    source = forecaster(ForecastMethod.ARIMA, clock=lambda: float(next(ticks)))
    forecast = source.update(series_of(seasonal(300)), horizon_seconds=60)
    assert forecast is not None
    assert forecast.method is ForecastMethod.LAST_VALUE
    assert source.fallbacks["arima"] >= 1
    assert source.fallbacks["holtWinters"] >= 1
    assert source.last_fallback is not None
    assert source.last_fallback.endswith("over its time budget")


def test_auto_finds_the_season() -> None:
    rate = seasonal(480, noise=0.1)
    forecast = made(rate, steps=6)
    assert forecast.method in {ForecastMethod.ARIMA, ForecastMethod.HOLT_WINTERS}
    assert forecast.error_against_last_value is not None
    assert forecast.error_against_last_value < 0.5
    expected = 10 * (1 + 0.6 * np.sin(2 * np.pi * np.arange(480, 486) / 48))
    assert forecast.rate == pytest.approx(expected, rel=0.25)


def test_auto_stays_with_last_value_on_a_random_walk() -> None:
    walk = 100 + np.cumsum(np.random.default_rng(5).normal(size=400))
    forecast = made(walk)
    assert forecast.method is ForecastMethod.LAST_VALUE
    assert forecast.error_against_last_value == pytest.approx(1.0)


def test_auto_is_not_worse_than_last_value_where_the_load_jumps() -> None:
    # Plateaus of an hour, as of batch jobs: nothing beats last value.
    rate = np.repeat(np.random.default_rng(6).uniform(1, 20, size=8), 60)
    source, off, off_last = forecaster(), 0.0, 0.0
    for end, history in zip(range(200, 480), moving(rate, 200, 300), strict=False):
        forecast = source.update(history, horizon_seconds=120)
        if forecast is not None and end + 1 < len(rate):
            off += abs(rate[end + 1] - forecast.rate[-1])
            off_last += abs(rate[end + 1] - rate[end - 1])
    assert off <= 1.02 * off_last


def test_upper_rate_covers_its_quantile() -> None:
    rate = drifting(500)
    source, covered = forecaster(quantile=0.8), []
    for end, history in zip(range(150, 498), moving(rate, 150, 300), strict=False):
        forecast = source.update(history, horizon_seconds=180)
        assert forecast is not None
        covered.append(rate[end + 2] <= forecast.upper_rate[2])
    assert 0.7 < np.mean(covered) < 0.9


def test_without_a_quantile_it_is_chosen_by_the_promise() -> None:
    rate = drifting(300)
    strict, loose, given = (
        Forecaster(clock=lambda: 0.0, attainment=attainment, quantile=quantile).update(
            series_of(rate), horizon_seconds=180
        )
        for attainment, quantile in ((0.99, None), (0.8, None), (0.99, 0.7))
    )
    assert strict is not None
    assert loose is not None
    assert given is not None
    assert 0.5 <= loose.quantile < strict.quantile < 1
    assert loose.upper_rate[-1] <= strict.upper_rate[-1]
    assert given.quantile == 0.7


def test_error_is_the_weighted_one_at_the_horizon() -> None:
    # A saw tooth whose last value is wrong by exactly 2 two steps on, at a mean of 2.
    rate = np.tile([1.0, 1.0, 3.0, 3.0], 40)
    forecast = made(rate, method=ForecastMethod.LAST_VALUE, steps=2)
    assert forecast.error == pytest.approx(1.0, rel=0.05)
    assert forecast.error_against_last_value == pytest.approx(1.0)


def test_the_window_may_move_and_the_answer_is_about_that_of_a_fresh_start() -> None:
    rate = seasonal(420, noise=0.05)
    source = forecaster(ForecastMethod.ARIMA)
    for history in moving(rate, 300, 300):
        forecast = source.update(history, horizon_seconds=300)
    fresh = forecaster(ForecastMethod.ARIMA).update(history, horizon_seconds=300)
    assert forecast is not None
    assert fresh is not None
    assert forecast.rate == pytest.approx(fresh.rate, rel=0.1)
    assert forecast.error == pytest.approx(fresh.error, rel=0.4)
    assert not source.fallbacks


def test_several_new_intervals_at_once_are_taken_in() -> None:
    rate = seasonal(320)
    step_by_step, at_once = forecaster(ForecastMethod.HOLT_WINTERS), forecaster(ForecastMethod.HOLT_WINTERS)
    at_once.update(series_of(rate[:300]), horizon_seconds=300)
    together = at_once.update(series_of(rate[:305]), horizon_seconds=300)
    for history in moving(rate[:305], 300, 400):
        apart = step_by_step.update(history, horizon_seconds=300)
    assert together is not None
    assert apart is not None
    # Not the same to the last digit, for the fit that became due saw a little more.
    assert together.rate == pytest.approx(apart.rate, rel=1e-2)
    assert together.error == pytest.approx(apart.error, rel=1e-2)


def test_asking_again_changes_nothing() -> None:
    source, history = forecaster(), series_of(seasonal(300))
    assert source.update(history, horizon_seconds=300) == source.update(history, horizon_seconds=300)


def test_a_horizon_that_grows_is_followed() -> None:
    source, history = forecaster(), series_of(seasonal(300))
    for steps in (3, 10, 40, 2):
        forecast = source.update(history, horizon_seconds=60.0 * steps)
        assert forecast is not None
        check(forecast, steps)
        assert forecast.error is not None


@pytest.mark.parametrize(("horizon_seconds", "steps"), [(0.0, 1), (1.0, 1), (60.0, 1), (60.1, 2), (1e9, 1440)])
def test_steps_cover_the_horizon(horizon_seconds: float, steps: int) -> None:
    forecast = forecaster().update(series_of([1.0, 2.0]), horizon_seconds=horizon_seconds)
    assert forecast is not None
    assert len(forecast.rate) == steps


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(series_of(drifting(200) * 7, end_seconds=18_060.0), id="another load"),
        pytest.param(series_of(drifting(200), end_seconds=60.0), id="the clock went back"),
        pytest.param(series_of(drifting(200), end_seconds=1e6), id="no overlap"),
        pytest.param(series_of(drifting(200), interval_seconds=30.0), id="another interval"),
    ],
)
def test_a_series_that_does_not_continue_is_a_fresh_start(other: LoadSeries) -> None:
    source = forecaster()
    source.update(series_of(seasonal(300)), horizon_seconds=120)
    assert source.update(other, horizon_seconds=120) == forecaster().update(other, horizon_seconds=120)


def test_a_growing_load_is_not_held_down() -> None:
    rate = np.concatenate([np.full(100, 0.01), np.geomspace(0.01, 50, 60), np.full(40, 50.0)])
    source = forecaster(ForecastMethod.HOLT_WINTERS)
    for history in moving(rate + 1e-3 * seasonal(200), 90, 500):
        forecast = source.update(history, horizon_seconds=60)
    assert forecast is not None
    assert forecast.rate[0] == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize("bad", [{"quantile": 0.0}, {"quantile": 1.0}, {"season_seconds": 0.0}, {"fit_seconds": 0.0}])
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Forecaster(clock=lambda: 0.0, **bad)  # type: ignore[arg-type]


loads = st.floats(min_value=0, max_value=1e4, allow_subnormal=False) | st.just(NAN)


@settings(max_examples=40)
@given(
    rate=st.lists(loads, max_size=60),
    lengths=st.lists(st.floats(min_value=1, max_value=1e5) | st.just(NAN), min_size=60, max_size=60),
    steps=st.integers(1, 20),
    method=st.sampled_from(METHODS),
)
def test_any_history_has_a_sound_forecast(
    rate: list[float], lengths: list[float], steps: int, method: ForecastMethod
) -> None:
    source = forecaster(method, season_intervals=8)
    tokens = np.array(lengths[: len(rate)])
    for end in sorted({len(rate) // 2, len(rate)}):
        history = series_of(rate[:end], isl_tokens=tokens[:end], osl_tokens=tokens[:end][::-1])
        forecast = source.update(history, horizon_seconds=60.0 * steps)
        assert (forecast is None) == (not np.isfinite(rate[:end]).any())
        if forecast is not None:
            check(forecast, steps)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-8, 20), method=st.sampled_from(METHODS))
def test_the_unit_of_the_rate_does_not_matter(seed: int, power: int, method: ForecastMethod) -> None:
    rate = seasonal(150, noise=0.3, seed=seed)
    one, other = made(rate, method=method), made(rate * 2.0**power, method=method)
    assert other.method is one.method
    assert np.array(other.rate) == pytest.approx(np.array(one.rate) * 2.0**power, rel=1e-6)
    assert np.array(other.upper_rate) == pytest.approx(np.array(one.upper_rate) * 2.0**power, rel=1e-6)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_same_history_gives_the_same_forecasts(seed: int) -> None:
    rate = seasonal(130, noise=0.3, seed=seed)
    one, other = forecaster(), forecaster()
    for history in moving(rate, 110, 100):
        assert one.update(history, horizon_seconds=180) == other.update(history, horizon_seconds=180)


def test_a_slow_model_takes_no_longer_than_agreed_and_is_fitted_to_all_of_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, fitted = [0.0], []

    class Slow:
        """Takes 0.1 s for each interval, which a long history has thousands of."""

        def advance(self, rate: float) -> None:
            now[0] += 0.1

        def path(self, steps: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.ones(steps)

    def fit(rate: Any, **_: Any) -> Slow:
        fitted.append(len(rate))
        return Slow()

    monkeypatch.setitem(forecaster_module._FITS, ForecastMethod.ARIMA, fit)
    slow = Forecaster(season_seconds=86_400.0, clock=lambda: now[0], fit_seconds=0.3)
    history = LoadSeries(
        interval_seconds=60.0,
        end_seconds=1e9,
        rate=np.full(4_000, 1.0),
        isl_tokens=np.full(4_000, 1.0),
        osl_tokens=np.full(4_000, 1.0),
    )
    forecast = slow.update(history, horizon_seconds=86_400.0)
    assert now[0] <= 3 * 0.3
    assert fitted[-1] == len(history.rate)
    assert forecast is not None
    assert forecast.error == 0.0, "the quick models were back-tested to the end"
