"""The quantile of a forecast that a promise needs: as low as it may be, since what is above it costs workers."""

from __future__ import annotations

import numpy as np

from fulcrum.forecast.backtest import Scores
from fulcrum.forecast.model import LEAST_INTERVALS
from fulcrum.forecast.scale import LogScale


def promised_quantile(scores: Scores, *, attainment: float, scale: LogScale) -> float:
    """Return the lowest quantile, at least 0.5, at which a plan by past forecasts would have kept the promise.

    Requests beyond the upper rate of their interval count as missed; of all that came, a share of `1 - attainment` may
    be. Workers are paid for the upper rate, which rises with the quantile, so the lowest that suffices is the cheapest.
    Before enough errors were seen it is `attainment`.
    """
    if len(scores) < LEAST_INTERVALS:
        return max(attainment, 0.5)
    expected = scale.forward(scores.forecast)
    errors = np.sort(scale.forward(scores.actual) - expected)
    allowed = (1 - attainment) * float(scores.actual.sum())
    low, high = 0, len(errors) - 1  # the highest error misses nothing
    while low < high:
        middle = (low + high) // 2
        beyond = scores.actual - scale.backward(expected + max(float(errors[middle]), 0.0))
        if float(np.maximum(beyond, 0.0).sum()) <= allowed:
            high = middle
        else:
            low = middle + 1
    return max((high + 1) / (len(errors) + 1), 0.5)
