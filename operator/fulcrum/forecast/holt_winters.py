"""Holt-Winters exponential smoothing: fitted by statsmodels, advanced by its recursion."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.forecast.model import LEAST_INTERVALS, LEAST_SPREAD, WINDOW_INTERVALS, Budget, FitError, Floats
from fulcrum.forecast.scale import LogScale


@dataclass(slots=True, kw_only=True)
class HoltWinters:
    """Additive damped trend and additive season on the log scale (Hyndman and Athanasopoulos, fpp3, section 8.3)."""

    scale: LogScale
    alpha: float
    beta: float
    gamma: float
    phi: float
    level: float
    trend: float
    season: Floats
    """The next season's indices, the next interval's first; empty without a season."""

    def advance(self, rate: float) -> None:
        expected = self.level + self.phi * self.trend
        index = float(self.season[0]) if len(self.season) else 0.0
        if np.isfinite(rate):
            z = float(self.scale.forward(np.asarray(rate)))
            level = self.alpha * (z - index) + (1 - self.alpha) * expected
            self.trend = self.beta * (level - self.level) + (1 - self.beta) * self.phi * self.trend
            index = self.gamma * (z - expected) + (1 - self.gamma) * index
            self.level = level
        else:
            self.level = expected
            self.trend *= self.phi
        if len(self.season):
            self.season = np.append(self.season[1:], index)

    def path(self, steps: int) -> Floats:
        z = self.level + self.trend * np.cumsum(self.phi ** np.arange(1, steps + 1))
        if len(self.season):
            z = z + np.resize(self.season, steps)
        return self.scale.backward(z)


def fit_holt_winters(rate: Floats, *, season_intervals: float, budget: Budget) -> HoltWinters | None:
    """See `model.Fit`; None below a dozen intervals or when all are alike.

    Chooses by AICc between simple smoothing and a damped trend; with two short enough seasons there, a season too.
    """
    from statsmodels.tsa.holtwinters import ExponentialSmoothing  # type: ignore[import-untyped]

    measured = np.flatnonzero(np.isfinite(rate))
    seasonal = round(season_intervals)
    # One index per interval of the season: of a longer one (24 h of minutes) each index would rest on a handful of
    # noisy values. Long seasons are left to ARIMA's Fourier terms and to seasonal naive.
    if not (2 <= seasonal <= WINDOW_INTERVALS // 2 and measured[-1] + 1 - measured[0] >= 2 * seasonal):
        seasonal = 0
    end = int(measured[-1]) + 1
    start = max(int(measured[0]), end - WINDOW_INTERVALS)
    window = rate[start:end]
    known = np.flatnonzero(np.isfinite(window))
    if len(known) < LEAST_INTERVALS or 2 * len(known) < len(window):
        return None
    scale = LogScale.of(window)
    # Holt-Winters knows no gaps: they are bridged by straight lines.
    z = np.interp(np.arange(len(window)), known, scale.forward(window[known]))
    if np.ptp(z) < LEAST_SPREAD:
        return None
    best: Any = None
    for trend in (None, "add"):
        try:
            with warnings.catch_warnings():
                # An optimum that is not quite reached forecasts well enough; the back-test judges it.
                warnings.simplefilter("ignore")
                result = ExponentialSmoothing(
                    z,
                    trend=trend,
                    damped_trend=trend is not None,
                    seasonal="add" if seasonal else None,
                    seasonal_periods=seasonal or None,
                    initialization_method="heuristic",
                ).fit(minimize_kwargs={"callback": budget.check})
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):
            continue
        if np.isfinite(result.aicc) and np.isfinite(result.level[-1]) and (best is None or result.aicc < best.aicc):
            best = result
    if best is None:
        raise FitError("no Holt-Winters model could be fitted")
    model = HoltWinters(
        scale=scale,
        alpha=float(best.params["smoothing_level"]),
        beta=_or_zero(best.params["smoothing_trend"]),
        gamma=_or_zero(best.params["smoothing_seasonal"]),
        phi=float(best.params["damping_trend"]) if np.isfinite(best.params["damping_trend"]) else 1.0,
        level=float(best.level[-1]),
        trend=float(best.trend[-1]) if best.model.has_trend else 0.0,
        season=np.asarray(best.season[-seasonal:], dtype=np.float64) if seasonal else np.empty(0),
    )
    for value in rate[end:]:
        model.advance(float(value))
    return model


def _or_zero(value: float | None) -> float:
    """statsmodels says NaN or None for a parameter that the model does not have."""
    return 0.0 if value is None or not np.isfinite(value) else float(value)
