"""Which method `auto` uses: last value, unless another has been convincingly better at the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast.backtest import Backtest
from fulcrum.forecast.model import LEAST_INTERVALS, Floats

_LEAST_GAIN: Final = 0.03
"""Share of the error by which a challenger must beat the method in use: what is less is noise, and every change of the
method is a jump of the forecast."""


def best_method(
    backtest: Backtest, available: Sequence[ForecastMethod], column: int, *, in_use: ForecastMethod
) -> ForecastMethod:
    """The method with the least mean absolute error of those that beat last value; `in_use` has a small advantage.

    Beating is judged by the test of Diebold and Mariano (1995) on paired absolute errors, whose variance allows for
    the overlap of forecasts that reach several steps (Newey-West).
    """
    best, best_error = ForecastMethod.LAST_VALUE, 1.0 if in_use is ForecastMethod.LAST_VALUE else 1.0 + _LEAST_GAIN
    overlap = int(backtest.steps[column]) - 1
    for method in available:
        if method is ForecastMethod.LAST_VALUE:
            continue
        own = backtest.scores(method, column)
        last = backtest.scores(ForecastMethod.LAST_VALUE, column, like=method)
        if len(own) < LEAST_INTERVALS or len(own) != len(last):
            continue
        own_errors, last_errors = np.abs(own.actual - own.forecast), np.abs(last.actual - last.forecast)
        if last_errors.sum() <= 0:
            continue
        needed = 0.0 if method is in_use else 1.0  # standard errors by which a method must beat the last value
        if gain_in_standard_errors(last_errors - own_errors, overlap) <= needed:
            continue
        error = float(own_errors.sum() / last_errors.sum()) + (0.0 if method is in_use else _LEAST_GAIN)
        if error < best_error:
            best, best_error = method, error
    return best


def gain_in_standard_errors(gain: Floats, overlap: int) -> float:
    """Mean over its standard error, with Bartlett weights on the autocovariances up to `overlap`."""
    mean = float(gain.mean())
    centred = gain - mean
    variance = float(centred @ centred)
    for lag in range(1, min(overlap, len(gain) // 4) + 1):
        variance += 2 * (1 - lag / (overlap + 1)) * float(centred[lag:] @ centred[:-lag])
    error = float(np.sqrt(max(variance, 0.0))) / len(gain)
    return mean / error if error > 0 else float(np.sign(mean)) * np.inf if mean else 0.0
