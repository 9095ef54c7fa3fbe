"""Forecasts of one cluster's load, from a history that grows interval by interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast.arima import fit_arima
from fulcrum.forecast.backtest import Backtest
from fulcrum.forecast.band import upper
from fulcrum.forecast.baseline import fit_last_value, fit_seasonal_naive
from fulcrum.forecast.holt_winters import fit_holt_winters
from fulcrum.forecast.intervals import cleaned, new_intervals
from fulcrum.forecast.lengths import expected_tokens
from fulcrum.forecast.model import WINDOW_INTERVALS, Budget, Fit, FitError, Floats, Model
from fulcrum.forecast.promise import promised_quantile
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.scale import LogScale
from fulcrum.forecast.selection import best_method
from fulcrum.forecast.series import LoadSeries

_FITS: Final[dict[ForecastMethod, Fit]] = {
    ForecastMethod.ARIMA: fit_arima,
    ForecastMethod.HOLT_WINTERS: fit_holt_winters,
    ForecastMethod.SEASONAL_NAIVE: fit_seasonal_naive,
    ForecastMethod.LAST_VALUE: fit_last_value,
}
_KEPT: Final[dict[ForecastMethod, tuple[ForecastMethod, ...]]] = {
    ForecastMethod.AUTO: tuple(_FITS),
    ForecastMethod.ARIMA: (ForecastMethod.ARIMA, ForecastMethod.HOLT_WINTERS, ForecastMethod.LAST_VALUE),
    ForecastMethod.HOLT_WINTERS: (ForecastMethod.HOLT_WINTERS, ForecastMethod.LAST_VALUE),
    ForecastMethod.SEASONAL_NAIVE: (ForecastMethod.SEASONAL_NAIVE, ForecastMethod.LAST_VALUE),
    ForecastMethod.LAST_VALUE: (ForecastMethod.LAST_VALUE,),
}
"""What each choice keeps ready, the first that is available is used (auto: the best)."""
_AGELESS: Final = frozenset({ForecastMethod.LAST_VALUE, ForecastMethod.SEASONAL_NAIVE})
_MOST_STEPS: Final = 1440
_ORIGINS: Final = 360
"""Origins that errors are taken over."""
_REPLAYED_ORIGINS: Final = 120
"""Origins that a fresh start back-tests on the history, beyond the horizon's length."""
_MOST_GROWTH: Final = 4.0
"""No forecast is above this multiple of the highest rate of the history: an extrapolated exponential soon is absurd."""


class Forecaster:
    """Keeps fitted models and their back-test for one cluster; give it the history each interval.

    `update` advances the models by what is new in the series (the window may move), fits at most one of them again
    when it is due, and starts afresh when the series is not the continuation of the one before.
    """

    def __init__(
        self,
        *,
        method: ForecastMethod = ForecastMethod.AUTO,
        season_seconds: float = 86_400.0,
        quantile: float | None = 0.9,
        attainment: float = 0.95,
        clock: Callable[[], float],
        fit_seconds: float = 0.3,
    ) -> None:
        """`quantile` of the upper rate; None: the lowest that keeps the promise of `attainment` (`forecast.promise`).

        `clock` is any monotonic one in seconds (in a simulation: `lambda: 0.0`, then no fit is ever cut short).
        `fit_seconds` bounds each fit. Raises ValueError for a season, quantile or bound out of range.
        """
        if not (season_seconds > 0 and (quantile is None or 0 < quantile < 1) and fit_seconds > 0):
            raise ValueError(
                "season_seconds and fit_seconds must be above 0 and quantile between 0 and 1, got "
                f"{season_seconds=}, {fit_seconds=}, {quantile=}"
            )
        self.fallbacks: Counter[str] = Counter()
        """Fits that failed or took too long, by method; another method was used, or the older fit."""
        self.last_fallback: str | None = None
        """Method and cause of the last of them."""
        self._method = method
        self._methods = _KEPT[method]
        self._season_seconds = season_seconds
        self._quantile = quantile
        self._attainment = attainment
        self._clock = clock
        self._fit_seconds = fit_seconds
        self._series: LoadSeries | None = None
        self._season_intervals = 0.0
        self._highest = 0.0
        self._models: dict[ForecastMethod, Model] = {}
        self._fitted: dict[ForecastMethod, tuple[int, int]] = {}
        """By method, of the last fit or attempt: intervals taken in till then, and length of its history."""
        self._taken = 0
        self._backtest = Backtest(methods=self._methods, steps=1, origins=_ORIGINS)
        self._in_use = ForecastMethod.LAST_VALUE

    def update(self, series: LoadSeries, *, horizon_seconds: float) -> Forecast | None:
        """The forecast from the end of `series` over at least `horizon_seconds` (at most 1,440 intervals).

        None while no rate was ever measured. `error` and `error_against_last_value` are at the horizon's end. The
        expected rate is the models' median; `upper_rate` is made from the errors of the method's back-test.
        """
        rate = cleaned(series.rate)
        if not np.isfinite(rate).any():
            self._series = None
            return None
        steps = int(np.clip(np.ceil(horizon_seconds / series.interval_seconds - 1e-9), 1, _MOST_STEPS))
        self._highest = float(np.nanmax(rate))
        self._season_intervals = self._season_seconds / series.interval_seconds
        new = None if self._series is None else new_intervals(self._series, series)
        if new is None or new > _REPLAYED_ORIGINS + steps or steps > self._backtest.reach:
            self._start(rate, steps)
        else:
            for value in rate[len(rate) - new :]:
                self._advance(float(value))
            if new:
                self._fit_one_that_is_due(rate)
        self._series = series
        return self._forecast(series, rate, steps)

    def _start(self, rate: Floats, steps: int) -> None:
        """Fit on the older part of the history and forecast the newer one, as if it came now."""
        self._backtest = Backtest(methods=self._methods, steps=steps, origins=_ORIGINS)
        self._models.clear()
        self._fitted.clear()
        self._taken = len(rate) - min(len(rate) // 2, _REPLAYED_ORIGINS + steps)
        before = rate[: self._taken]
        for method in self._methods:
            self._fit(method, before)
        self._record()
        self._replay(rate[len(before) :])
        for method in self._methods:
            if method not in self._models:
                self._fit(method, rate)

    def _replay(self, newer: Floats) -> None:
        """Take in history as if it came now.

        A model that takes longer for it than for two fits is left out, and fitted to all of it.
        """
        spent_seconds = dict.fromkeys(self._methods, 0.0)
        for rate in newer:
            for method, seconds in self._advance(float(rate)).items():
                spent_seconds[method] += seconds
                if spent_seconds[method] > 2 * self._fit_seconds:
                    self._models.pop(method, None)

    def _advance(self, rate: float) -> dict[ForecastMethod, float]:
        """Take in one interval. Returns the seconds that each model took for it."""
        self._backtest.observe(rate)
        self._taken += 1
        paths, seconds = {}, {}
        for method, model in tuple(self._models.items()):
            began = self._clock()
            model.advance(rate)
            path = self._path(method, model)
            if path is not None:
                paths[method] = path
            seconds[method] = self._clock() - began
        self._backtest.record(paths)
        return seconds

    def _record(self) -> None:
        paths = {method: self._path(method, model) for method, model in tuple(self._models.items())}
        self._backtest.record({method: path for method, path in paths.items() if path is not None})

    def _path(self, method: ForecastMethod, model: Model) -> Floats | None:
        """Return what a model expects; None, and the model is dropped, when that is not finite."""
        path: Floats = np.minimum(model.path(self._backtest.reach), _MOST_GROWTH * self._highest)
        if np.isfinite(path).all():
            return path
        self._fell_back(method, "its forecast is not finite")
        del self._models[method]
        return None

    def _fit_one_that_is_due(self, rate: Floats) -> None:
        """Fit the most overdue model, one at a time so that no update takes long.

        One is due after an eighth of what it was fitted on has come, and after six intervals at least.
        """
        due, most = None, 1.0
        for method in self._methods:
            taken, length = self._fitted[method]
            # The baselines hold nothing that ages.
            if method in _AGELESS and method in self._models:
                continue
            overdue = (self._taken - taken) / max(min(length, WINDOW_INTERVALS) / 8, 6)
            if overdue >= most:
                due, most = method, overdue
        if due is not None:
            self._fit(due, rate)

    def _fit(self, method: ForecastMethod, rate: Floats) -> None:
        """Fit to the history; a fit that fails leaves the older one."""
        self._fitted[method] = self._taken, len(rate)
        if not np.isfinite(rate).any():
            return
        budget = Budget(clock=self._clock, deadline_seconds=self._clock() + self._fit_seconds)
        try:
            model = _FITS[method](rate, season_intervals=self._season_intervals, budget=budget)
        except FitError as error:
            self._fell_back(method, str(error))
            return
        if model is None:
            return
        if not np.isfinite(model.path(self._backtest.reach)).all():
            self._fell_back(method, "its forecast is not finite")
            return
        self._models[method] = model

    def _fell_back(self, method: ForecastMethod, why: str) -> None:
        self.fallbacks[method.value] += 1
        self.last_fallback = f"{method.value}: {why}"

    def _forecast(self, series: LoadSeries, rate: Floats, steps: int) -> Forecast:
        column = self._backtest.column(steps)
        if self._method is ForecastMethod.AUTO:
            method = best_method(self._backtest, tuple(self._models), column, in_use=self._in_use)
        else:
            method = next(method for method in self._methods if method in self._models)
        self._in_use = method
        path = np.minimum(self._models[method].path(steps), _MOST_GROWTH * self._highest)
        season = self._season_intervals
        lengths = [
            (tokens, expected_tokens(tokens, rate, steps=steps, season_intervals=season))
            for tokens in (cleaned(series.isl_tokens), cleaned(series.osl_tokens))
        ]
        scale, quantile = LogScale.of(rate), self._quantile
        if quantile is None:
            scores = self._backtest.scores(method, column)
            misjudged = [known.misjudged(tokens, scores.ages) for tokens, known in lengths if known is not None]
            quantile = promised_quantile(scores, attainment=self._attainment, scale=scale, misjudged=misjudged)
        upper_path = upper(
            path,
            self._backtest,
            method,
            quantile=quantile,
            scale=scale,
            interval_seconds=series.interval_seconds,
        )
        isl_tokens, osl_tokens = (None if known is None else tuple(known.ahead.tolist()) for _, known in lengths)
        error = self._backtest.scores(method, column, like=ForecastMethod.LAST_VALUE).wape
        last_error = self._backtest.scores(ForecastMethod.LAST_VALUE, column, like=method).wape
        return Forecast(
            method=method,
            interval_seconds=series.interval_seconds,
            quantile=quantile,
            rate=tuple(path.tolist()),
            upper_rate=tuple(upper_path.tolist()),
            isl_tokens=isl_tokens,
            osl_tokens=osl_tokens,
            error=error,
            error_against_last_value=error / last_error if error is not None and last_error else None,
        )
