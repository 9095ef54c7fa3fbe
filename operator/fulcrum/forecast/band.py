"""The upper quantile of a forecast, from the errors that its method made at each step."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from fulcrum.api.types import ForecastMethod
from fulcrum.forecast.backtest import Backtest
from fulcrum.forecast.model import LEAST_INTERVALS, Floats
from fulcrum.forecast.scale import LogScale


def upper(
    path: Floats,
    backtest: Backtest,
    method: ForecastMethod,
    *,
    quantile: float,
    scale: LogScale,
    interval_seconds: float,
) -> Floats:
    """Requests per second at `quantile`; never below `path`.

    Split conformal prediction on the method's back-test (Vovk et al.; rank `ceil((n + 1) * quantile)` of n errors, on
    the log scale, so that they grow with the load): it holds for noise of any shape, and covers errors of the model,
    which a model's own intervals do not. Before enough errors are there, the noise of counting Poisson arrivals over
    one interval is the least that is allowed for.
    """
    steps: list[int] = []
    offsets: list[float] = []
    few: list[float] = []
    for column, step in enumerate(backtest.steps[: backtest.column(len(path)) + 1]):
        scores = backtest.scores(method, column)
        errors = np.sort(scale.forward(scores.actual) - scale.forward(scores.forecast))
        if len(errors) >= LEAST_INTERVALS:
            rank = min(int(np.ceil((len(errors) + 1) * quantile)), len(errors))
            steps.append(int(step))
            offsets.append(max(float(errors[rank - 1]), 0.0))
        elif len(errors):
            few.append(float(errors[-1]))
    if steps:
        offset = np.interp(np.arange(1, len(path) + 1), steps, offsets)
        banded = scale.backward(scale.forward(path) + offset)
    else:
        banded = scale.backward(scale.forward(path) + max([0.0, *few]))
        normal = max(NormalDist().inv_cdf(quantile), 0.0)
        banded = np.maximum(banded, path + normal * np.sqrt(path / interval_seconds))
    return np.maximum(banded, path)
