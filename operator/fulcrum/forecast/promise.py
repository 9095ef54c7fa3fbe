"""The quantile of a forecast that a promise needs: as low as it may be, since what is above it costs workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fulcrum.forecast.backtest import Scores
from fulcrum.forecast.model import LEAST_INTERVALS, Floats
from fulcrum.forecast.scale import LogScale


def promised_quantile(scores: Scores, *, attainment: float, scale: LogScale, misjudged: Sequence[Floats] = ()) -> float:
    """Return the lowest quantile, at least 0.5, at which a plan by past forecasts would have kept the promise.

    Requests beyond the upper rate of their interval count as missed; of all that came, half of what the promise lets
    miss may be. `misjudged` has for each role by how much longer requests were than expected: workers that are planned
    for so many requests of the expected length do as many fewer. Workers are paid for the upper rate, which rises with
    the quantile, so the lowest that suffices is the cheapest. Before enough errors were seen it is `attainment`.
    """
    if len(scores) < LEAST_INTERVALS:
        return min(max(attainment, 0.5), 0.99)  # nothing that is so little known is certain
    expected = scale.forward(scores.forecast)
    errors = np.sort(scale.forward(scores.actual) - expected)
    works = [scores.actual * times for times in misjudged] or [scores.actual]
    low, high = 0, len(errors) - 1  # the highest error is the most that was ever needed
    while low < high:
        middle = (low + high) // 2
        planned = scale.backward(expected + max(float(errors[middle]), 0.0))
        # Workers are as many as keep the promise at the planned load: half of the misses are left to their queues.
        if all(2 * np.maximum(work - planned, 0.0).sum() <= (1 - attainment) * work.sum() for work in works):
            high = middle
        else:
            low = middle + 1
    return max((high + 1) / (len(errors) + 1), 0.5)
