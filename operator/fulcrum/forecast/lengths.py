"""Prompt and output lengths: a mean over recent requests, with the memory that has served best."""

from __future__ import annotations

from typing import Final

import numpy as np

from fulcrum.forecast.model import Floats

_HALF_LIVES: Final = (0.0, 1.0, 3.0, 10.0, 30.0)
"""To choose from, in intervals; 0 is the last interval alone."""
_MOST_HALF_LIVES: Final = 10
_WINDOW_INTERVALS: Final = 480


def expected_tokens(tokens: Floats, rate: Floats, *, step: int) -> float | None:
    """Expected tokens per request `step` intervals on; None when none was ever measured.

    An exponentially weighted mean over requests (`tokens` is the mean of each interval, weighted by its `rate`): mean
    lengths have no trend worth extrapolating, but much noise where few requests arrive. Its half-life is the one with
    the least weighted error `step` intervals ahead on this very series.
    """
    known = np.flatnonzero(np.isfinite(tokens))
    if not len(known):
        return None
    window = slice(max(0, known[-1] + 1 - _WINDOW_INTERVALS), known[-1] + 1)
    tokens, rate = tokens[window], rate[window]
    arrived = np.isfinite(rate) & (rate > 0)
    # Lengths may be of requests that ended, rates are of requests that arrived: a length without arrivals still counts.
    weight = np.where(arrived, rate, rate[arrived].mean() if arrived.any() else 1.0)
    weight[~np.isfinite(tokens)] = 0.0
    values = np.where(weight > 0, tokens, 0.0)
    best, least = float(values[-1]), np.inf
    for half_life in _HALF_LIVES:
        means = _means_so_far(values, weight, half_life)
        ahead = means[:-step]
        judged = np.isfinite(ahead)
        error = float((weight[step:] * np.abs(values[step:] - ahead))[judged].sum()) if judged.any() else np.inf
        if error < least:
            best, least = float(means[-1]), error
    return best


def _means_so_far(values: Floats, weight: Floats, half_life: float) -> Floats:
    """The mean as known after each interval; NaN before the first value."""
    taps = np.arange(min(len(values), int(_MOST_HALF_LIVES * half_life) + 1))
    kernel = 0.5 ** (taps / max(half_life, 1.0))
    top = np.convolve(weight * values, kernel)[: len(values)]
    bottom = np.convolve(weight, kernel)[: len(values)]
    there = np.where(bottom > 0, np.arange(len(values)), -1)
    latest = np.maximum.accumulate(there)  # a gap leaves the mean as it was
    means: Floats = top[latest] / np.where(bottom > 0, bottom, 1.0)[latest]
    means[latest < 0] = np.nan
    return means
