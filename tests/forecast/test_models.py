"""The models against statsmodels and against series of which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.forecast.histories import Floats, drifting, seasonal

from fulcrum.forecast.arima import Fourier, fit_arima
from fulcrum.forecast.baseline import LastValue, fit_seasonal_naive
from fulcrum.forecast.holt_winters import HoltWinters, fit_holt_winters
from fulcrum.forecast.model import Budget, FitError
from fulcrum.forecast.scale import LogScale

NAN = float("nan")
ENOUGH = Budget(clock=lambda: 0.0, deadline_seconds=1.0)
NONE_LEFT = Budget(clock=lambda: 2.0, deadline_seconds=1.0)


def test_last_value_skips_gaps() -> None:
    model = LastValue(3.0)
    model.advance(NAN)
    assert model.path(2).tolist() == [3.0, 3.0]
    model.advance(4.0)
    assert model.path(1).tolist() == [4.0]


def test_seasonal_naive_repeats_the_season_and_bridges_gaps_from_the_one_before() -> None:
    model = fit_seasonal_naive(np.array([9.0, 1, 2, 3, 1, NAN, 4]), season_intervals=3.0, budget=ENOUGH)
    assert model is not None
    # Slots of the season: 0 -> 4, 1 -> 1, 2 -> 2 (its last season was not measured); the next slot is 1.
    assert model.path(4).tolist() == [1.0, 2.0, 4.0, 1.0]
    model.advance(7.0)
    assert model.path(3).tolist() == [2.0, 4.0, 7.0]


def test_seasonal_naive_says_last_value_where_the_season_was_never_measured() -> None:
    model = fit_seasonal_naive(np.array([1.0, 2, NAN]), season_intervals=3.0, budget=ENOUGH)
    assert model is not None
    assert model.path(3).tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(("length", "season"), [(2, 3.0), (10, 1.0)])
def test_seasonal_naive_needs_a_season(length: int, season: float) -> None:
    assert fit_seasonal_naive(np.ones(length), season_intervals=season, budget=ENOUGH) is None


@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")
@pytest.mark.parametrize("trend", [None, "add"])
@pytest.mark.parametrize("season", [0, 12])
def test_the_recursion_is_that_of_statsmodels(trend: str | None, season: int) -> None:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing  # type: ignore[import-untyped]

    rate = seasonal(160, season=12)
    scale = LogScale.of(rate)
    z = scale.forward(rate)
    shape = {
        "trend": trend,
        "damped_trend": trend is not None,
        "seasonal": "add" if season else None,
        "seasonal_periods": season or None,
    }
    first = ExponentialSmoothing(z[:120], initialization_method="heuristic", **shape).fit()
    p = first.params
    fixed = {"smoothing_level": p["smoothing_level"]}
    initial = {"initial_level": p["initial_level"]}
    if trend:
        fixed |= {"smoothing_trend": p["smoothing_trend"], "damping_trend": p["damping_trend"]}
        initial["initial_trend"] = p["initial_trend"]
    if season:
        fixed["smoothing_seasonal"] = p["smoothing_seasonal"]
        initial["initial_seasonal"] = p["initial_seasons"]
    whole = ExponentialSmoothing(z, initialization_method="known", **initial, **shape).fit(optimized=False, **fixed)
    model = HoltWinters(
        scale=scale,
        alpha=p["smoothing_level"],
        beta=p["smoothing_trend"] if trend else 0.0,
        gamma=p["smoothing_seasonal"] if season else 0.0,
        phi=p["damping_trend"] if trend else 1.0,
        level=first.level[-1],
        trend=first.trend[-1] if trend else 0.0,
        season=first.season[-season:] if season else np.empty(0),
    )
    for value in rate[120:]:
        model.advance(float(value))
    assert model.level == pytest.approx(whole.level[-1])
    assert model.trend == pytest.approx(whole.trend[-1] if trend else 0.0)
    assert model.season == pytest.approx(whole.season[-season:] if season else np.empty(0))
    # statsmodels forecasts the last interval's slot with the index from before that interval; all others are the same.
    assert model.path(11) == pytest.approx(scale.backward(whole.forecast(11)))


def test_holt_winters_learns_a_short_season() -> None:
    model = fit_holt_winters(seasonal(240, season=24, noise=0.02), season_intervals=24.0, budget=ENOUGH)
    assert model is not None
    expected = 10 * (1 + 0.6 * np.sin(2 * np.pi * np.arange(240, 264) / 24))
    assert model.path(24) == pytest.approx(expected, rel=0.1)


def test_holt_winters_carries_its_season_through_a_gap() -> None:
    rate = seasonal(240, season=24, noise=0.02)
    rate[-6:] = NAN
    model = fit_holt_winters(rate, season_intervals=24.0, budget=ENOUGH)
    assert model is not None
    expected = 10 * (1 + 0.6 * np.sin(2 * np.pi * np.arange(240, 264) / 24))
    assert model.path(24) == pytest.approx(expected, rel=0.1)


def test_arima_says_what_statsmodels_says() -> None:
    model = fit_arima(drifting(200), season_intervals=1440.0, budget=ENOUGH)
    assert model is not None
    for value in (9.0, 11.0, NAN, 10.0):
        model.advance(value)
    ahead = model._result.forecast(8) + model._season.at(np.arange(204, 212, dtype=np.float64))
    assert model.path(8) == pytest.approx(model._scale.backward(ahead))


def test_arima_taken_on_by_interval_is_that_of_the_whole_series() -> None:
    rate = drifting(300)
    model = fit_arima(rate[:200], season_intervals=1440.0, budget=ENOUGH)
    assert model is not None
    z = model._scale.forward(rate) - model._season.at(np.arange(300, dtype=np.float64))
    whole = model._result.append(z[200:])
    for value in rate[200:]:
        model.advance(float(value))
    ahead = whole.forecast(5) + model._season.at(np.arange(300, 305, dtype=np.float64))
    assert model.path(5) == pytest.approx(model._scale.backward(ahead), rel=1e-6)


def test_arima_differences_while_no_season_is_known() -> None:
    model = fit_arima(drifting(200), season_intervals=1440.0, budget=ENOUGH)
    assert model is not None
    assert model.order[1] == 1


@pytest.mark.parametrize("season", [24.0, 37.5])
def test_arima_finds_the_season_whole_or_not(season: float) -> None:
    rng = np.random.default_rng(7)
    curve = 10 * (1 + 0.6 * np.sin(2 * np.pi * np.arange(424) / season))
    model = fit_arima(curve[:400] * np.exp(0.05 * rng.normal(size=400)), season_intervals=season, budget=ENOUGH)
    assert model is not None
    assert model.path(24) == pytest.approx(curve[400:], rel=0.15)


@pytest.mark.parametrize("history", [np.ones(10), np.full(100, 5.0)])
def test_too_short_or_too_plain_a_history_has_no_model(history: Floats) -> None:
    assert fit_arima(history, season_intervals=24.0, budget=ENOUGH) is None
    assert fit_holt_winters(history, season_intervals=24.0, budget=ENOUGH) is None


def test_a_fit_over_its_budget_says_so() -> None:
    for fit in (fit_arima, fit_holt_winters):
        with pytest.raises(FitError, match="budget"):
            fit(drifting(200), season_intervals=24.0, budget=NONE_LEFT)


def test_fourier_uses_no_pairs_before_two_seasons() -> None:
    z = np.sin(2 * np.pi * np.arange(90) / 48)
    assert len(Fourier.fit(z, 48.0).coefficients) == 1
    assert len(Fourier.fit(np.resize(z[:48], 96), 48.0).coefficients) > 1


def test_fourier_recovers_a_curve_through_gaps() -> None:
    index = np.arange(200, dtype=np.float64)
    curve = 3 + np.sin(2 * np.pi * index / 48) - 0.5 * np.cos(4 * np.pi * index / 48)
    z = curve.copy()
    z[50:90] = NAN
    assert Fourier.fit(z, 48.0).at(index) == pytest.approx(curve, abs=1e-6)


def test_the_scale_is_undone() -> None:
    rate = np.array([0.0, 0.5, 20.0])
    scale = LogScale.of(rate)
    assert scale.backward(scale.forward(rate)) == pytest.approx(rate)
    assert scale.backward(np.array([-3.0, 1e300]))[0] == 0
    assert np.isfinite(scale.backward(np.array([1e300])))
    assert LogScale.of(np.zeros(3)).mean == 1
