"""How many servers a stream of work needs so that few of its requests wait too long."""

from __future__ import annotations

from math import exp, log, pi, sqrt
from statistics import NormalDist
from typing import Final

_NORMAL: Final = NormalDist()
_HALVINGS: Final = 20


def staffed(work: float, *, patience: float, misses: float, variability: float = 1.0) -> float:
    """Return how many servers `work` needs, which is the mean number that are busy.

    Square-root staffing (Halfin and Whitt 1981): with `work + b * sqrt(work)` servers a request waits with probability
    1 / (1 + b * Phi(b) / phi(b)), and then longer than t service times with exp(-b * sqrt(work) * t): so many servers
    may be busier than few, and patient requests need fewer. `patience` is in mean service times, `misses` the share of
    the requests that may wait longer (0 is taken for one in a million). `variability`: of arrivals and service against
    exponential ones (Allen and Cunneen), by which waits are longer.
    """
    if work <= 0:
        return 0.0
    low, high = 0.0, 8.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        waits = -log(1 + middle * _NORMAL.cdf(middle) * sqrt(2 * pi) * exp(middle**2 / 2))
        too_many = waits - middle * sqrt(work) * patience / variability > log(max(misses, 1e-6))
        low, high = (middle, high) if too_many else (low, middle)
    return work + high * sqrt(work)
