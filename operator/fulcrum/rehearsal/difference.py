"""By how much one play is ahead of another one of the same requests, and how much of that is chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from fulcrum.rehearsal.tuning import TUNING

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


def difference(one: Bools, other: Bools, seen_seconds: Floats) -> tuple[float, float]:
    """Return by how many requests `one` is ahead, and the standard error of that.

    Misses come in bursts, and copies of one request say no more than it: the error is over blocks of the time in which
    requests were seen, `seen_seconds` (a jackknife).
    """
    ahead = one.astype(np.float64) - other
    return float(ahead.sum()), total_error(ahead, seen_seconds)


def over_draws(ahead: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return by how many requests one layout is ahead in several draws (each as `difference`), and the standard error.

    Draws differ in what was drawn. Their arrivals are the same, and the luck in these, which errors measure, does not
    average out.
    """
    gains, errors = np.array(ahead).T
    return float(gains.mean()), sqrt(float((errors**2).mean()))


def mean_difference(one: Bools, other: Bools, seen_seconds: Floats) -> tuple[float, float]:
    """Return by which share of the requests `one` is ahead, and the standard error of that."""
    ahead = one.astype(np.float64) - other
    return float(ahead.mean()), share_error(ahead, seen_seconds)


def share_error(values: Floats, seconds: Floats) -> float:
    """Return the standard error of the mean of `values`, which were or come at these `seconds`."""
    return total_error(values - values.mean(), seconds) / len(values)


def total_error(values: Floats, seconds: Floats) -> float:
    """Return the standard error of the sum of `values`, which were or come at these `seconds`."""
    sums = _by_block(values, seconds)
    count = len(sums)
    return sqrt(count / (count - 1) * float(((sums - sums.mean()) ** 2).sum())) if count > 1 else inf


def _by_block(values: Floats, seen_seconds: Floats) -> Floats:
    block_seconds = min(TUNING.block_seconds, float(np.ptp(seen_seconds)) / TUNING.least_blocks + 1e-9)
    blocks = ((seen_seconds - seen_seconds.min()) // block_seconds).astype(np.int64)
    sums: Floats = np.bincount(blocks, values).astype(np.float64)
    return sums
