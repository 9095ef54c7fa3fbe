"""What of the requests a pool takes that does not take every one (`pools[].admits`).

Prompt lengths are log-normal, in each class with the same spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, log, log1p, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.pool_types import PoolAdmits
from fulcrum.load.demand import Demand

Floats = NDArray[np.float64]
_NORMAL: Final = NormalDist()


def eligible(demand: Demand, pool: str, admits: Mapping[str, PoolAdmits]) -> tuple[float, Demand]:
    """Return the share of the requests that a pool takes, and what these are."""
    if pool not in admits:
        return 1.0, demand
    rule, taken = admits[pool], np.zeros(3)
    low, high = _bounds(rule)
    for name, share, mean, cv2 in _classes(demand):
        if name is None or not rule.classes or name in rule.classes:
            taken += share * _between(mean, cv2, low, high)
    return (float(taken[0]), _of(demand, taken)) if taken[0] > 1e-6 else (0.0, demand)


def _classes(demand: Demand) -> list[tuple[str | None, float, float, float]]:
    """Return (name, share, mean prompt, squared coefficient of variation) of each class; without a name: unknown."""
    if not demand.classes:
        return [(None, 1.0, demand.isl_tokens, demand.isl_cv2)]
    means = [each.relative_tokens * demand.isl_tokens for each in demand.classes]
    squares = sum(each.share * mean**2 for each, mean in zip(demand.classes, means, strict=True))
    within = max(demand.isl_tokens**2 * (1.0 + demand.isl_cv2) / squares - 1.0, 0.0)
    return [(each.name, each.share, mean, within) for each, mean in zip(demand.classes, means, strict=True)]


def log_spread(cv2: float) -> float:
    """Return the standard deviation of the logarithm of lengths with squared coefficient of variation `cv2`."""
    return sqrt(log1p(max(cv2, 0.0)))


def length_at(share: float, mean: float, cv2: float) -> float:
    """Return the length that such a share of the requests does not exceed, above 0 and below 1."""
    spread = log_spread(cv2)
    return mean * exp(_NORMAL.inv_cdf(share) * spread - spread**2 / 2)


def _bounds(rule: PoolAdmits) -> tuple[float, float]:
    """Return the bounds of an interval: lengths are whole numbers, so they lie half a token beyond those inside."""
    low = 0.0 if not rule.min_prompt_tokens else rule.min_prompt_tokens - 0.5
    return low, inf if rule.max_prompt_tokens is None else rule.max_prompt_tokens + 0.5


def _between(mean: float, cv2: float, low: float, high: float) -> Floats:
    """Return share, sum and sum of squares of the lengths between two bounds, of log-normal ones."""
    sigma = log_spread(cv2)

    def below(bound: float, moment: int) -> float:
        if bound in (0.0, inf) or sigma == 0.0:
            return float(mean <= bound)
        return _NORMAL.cdf((log(bound / mean) + sigma**2 / 2) / sigma - moment * sigma)

    whole = np.array([1.0, mean, mean**2 * (1.0 + cv2)])
    parts: Floats = whole * [below(high, moment) - below(low, moment) for moment in range(3)]
    return parts


def _of(demand: Demand, moments: Floats) -> Demand:
    """Return the demand that requests with such moments are."""
    share, mean, square = float(moments[0]), float(moments[1] / moments[0]), float(moments[2] / moments[0])
    return replace(
        demand, rate=demand.rate * share, isl_tokens=mean, isl_cv2=max(square / mean**2 - 1.0, 0.0), classes=()
    )
