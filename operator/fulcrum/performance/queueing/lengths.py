"""Log-normal lengths from their first two moments, as points to sum over."""

from __future__ import annotations

from math import erf, exp, inf, log, log1p, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPREAD = 4.0
"""Lengths are cut off this many standard deviations of their logarithm from the median: 0.006 % are outside."""

_KNOTS, _KNOT_WEIGHTS = np.polynomial.legendre.leggauss(32)
_MASS = erf(SPREAD / sqrt(2))


def log_spread(cv2: float) -> float:
    """Return the standard deviation of the logarithm of lengths with squared coefficient of variation `cv2`."""
    return sqrt(log1p(max(cv2, 0.0)))


def length_points(mean: float, cv2: float, *, longest: float = inf) -> tuple[Floats, Floats]:
    """Return lengths and their probabilities: Gauss-Legendre on the logarithm, 32 points.

    With `longest`, only lengths up to it are covered, and the probabilities sum up to the share that they are: a
    threshold then falls between no two points, and an estimate is smooth in it.
    """
    sigma = log_spread(cv2)
    top = SPREAD
    if longest < inf:
        distance = log(longest / mean) + sigma * sigma / 2 if longest > 0.0 else -inf
        if distance < sigma * SPREAD:
            top = distance / sigma if sigma > 0.0 else -inf
        if top <= -SPREAD:
            return np.zeros(1), np.zeros(1)
    half = (top + SPREAD) / 2
    z = half * (_KNOTS + 1.0) - SPREAD
    weights = _KNOT_WEIGHTS * np.exp(-z * z / 2) * (half / (sqrt(2 * pi) * _MASS))
    if top == SPREAD:
        weights /= weights.sum()
    return mean * exp(-sigma * sigma / 2) * np.exp(sigma * z), weights
