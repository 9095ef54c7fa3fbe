"""Log-normal lengths from their first two moments, as points to sum over."""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from fulcrum.performance.eligible import log_spread
from fulcrum.placement.queueing.tuning import TUNING

Floats = NDArray[np.float64]
_KNOTS, _KNOT_WEIGHTS = np.polynomial.legendre.leggauss(TUNING.points)


@lru_cache(maxsize=16)
def length_points(mean: float, cv2: float, *, longest: float = inf) -> tuple[Floats, Floats]:
    """Return lengths and their probabilities: Gauss-Legendre on the logarithm, cut off at `Tuning.sigmas`.

    With `longest`, only lengths up to it are covered, and the probabilities sum up to the share that they are: a
    threshold then falls between no two points, and an estimate is smooth in it. The arrays are shared: read them only.
    """
    sigma, bottom, top = log_spread(cv2), -TUNING.sigmas, TUNING.sigmas
    if longest < inf:
        distance = log(longest / mean) + sigma * sigma / 2 if longest > 0.0 else -inf
        if distance < sigma * top:
            top = distance / sigma if sigma > 0.0 else -inf
        if top <= bottom:
            return np.zeros(1), np.zeros(1)
    z = bottom + (top - bottom) / 2 * (_KNOTS + 1.0)
    weights = _KNOT_WEIGHTS * np.exp(-z * z / 2)
    outside = erf(bottom / sqrt(2))
    weights *= (erf(top / sqrt(2)) - outside) / (-2.0 * outside * weights.sum())
    return mean * exp(-sigma * sigma / 2) * np.exp(sigma * z), weights
