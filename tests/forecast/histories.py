"""Histories that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fulcrum.forecast.series import LoadSeries

Floats = NDArray[np.float64]


def series_of(
    rate: Sequence[float] | Floats,
    *,
    isl_tokens: Sequence[float] | Floats | None = None,
    osl_tokens: Sequence[float] | Floats | None = None,
    interval_seconds: float = 60.0,
    end_seconds: float | None = None,
) -> LoadSeries:
    """A history that starts at second 0 unless `end_seconds` says otherwise, with constant lengths unless given."""
    rates = np.asarray(rate, dtype=np.float64)
    return LoadSeries(
        interval_seconds=interval_seconds,
        end_seconds=len(rates) * interval_seconds if end_seconds is None else end_seconds,
        rate=rates,
        isl_tokens=np.full(len(rates), 1000.0) if isl_tokens is None else np.asarray(isl_tokens, dtype=np.float64),
        osl_tokens=np.full(len(rates), 200.0) if osl_tokens is None else np.asarray(osl_tokens, dtype=np.float64),
    )


def seasonal(count: int, *, season: int = 48, noise: float = 0.1, seed: int = 1) -> Floats:
    """A daily curve around 10 requests/s with multiplicative noise."""
    rng = np.random.default_rng(seed)
    phase = 2 * np.pi * np.arange(count) / season
    return np.asarray(10 * (1 + 0.6 * np.sin(phase)) * np.exp(noise * rng.normal(size=count)))


def drifting(count: int, *, seed: int = 2) -> Floats:
    """A level that wanders slowly under noise from interval to interval."""
    rng = np.random.default_rng(seed)
    level = np.cumsum(0.03 * rng.normal(size=count))
    return np.asarray(10 * np.exp(level + 0.15 * rng.normal(size=count)))
