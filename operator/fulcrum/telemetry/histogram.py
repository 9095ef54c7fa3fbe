"""What cumulative histogram buckets say: quantiles as PromQL reads them, and how spread the values are."""

from __future__ import annotations

import math
from collections.abc import Mapping


def quantile(buckets: Mapping[float, float], fraction: float) -> float | None:
    """Return the `fraction` quantile (0 to 1) by linear interpolation; None for an empty histogram.

    `buckets` maps upper bounds (+Inf included) to counts at or below them. As PromQL's `histogram_quantile`: values are
    spread evenly in their bucket, the lowest one begins at 0, and what falls into the last one is its lower bound.
    """
    bounds = sorted(buckets)
    if not bounds or not math.isinf(bounds[-1]):
        return None
    total = buckets[bounds[-1]]
    if not total > 0:
        return None
    rank = fraction * total
    lower = below = 0.0
    for bound in bounds:
        count = max(buckets[bound], below)  # counts of several scrapes may disagree by rounding
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * max(0.0, rank - below) / (count - below)
        lower, below = bound, count
    return lower


def squared_variation(buckets: Mapping[float, float]) -> float | None:
    """Return the squared coefficient of variation of values that lie as in `moments`; None when empty."""
    total, first, second = moments(buckets)
    if not first > 0:
        return None
    mean = first / total
    return max(0.0, second / total / (mean * mean) - 1.0)


def moments(buckets: Mapping[float, float]) -> tuple[float, float, float]:
    """Return the number of values, their sum and the sum of their squares.

    Values are spread evenly in their bucket. What falls into the last one (+Inf) is taken to be at its lower bound.
    """
    total = first = second = below = lower = 0.0
    for bound in sorted(buckets):
        count = max(0.0, buckets[bound] - below)
        upper = lower if math.isinf(bound) else bound
        total += count
        first += count * (lower + upper) / 2
        second += count * (lower * lower + lower * upper + upper * upper) / 3
        below, lower = max(buckets[bound], below), upper
    return total, first, second
