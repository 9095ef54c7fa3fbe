"""The most that was asked of each role over the last minutes: before workers are given back."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isnan

import numpy as np
from numpy.typing import NDArray

from fulcrum.forecast.series import LoadSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """The interval in which the most tokens of one kind came."""

    rate: float
    """Requests per second."""
    tokens: float | None
    """Mean tokens of a request; None where none was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most of an interval within the past `balance.scaleDown.stabilization`, each part by itself."""

    rate: float
    """Requests per second."""
    prompts: Busiest
    outputs: Busiest


def peak_of(series: LoadSeries, stabilization_seconds: float) -> Peak | None:
    """Return the most of the last `stabilization_seconds`; of no time at all it is nothing.

    None while the series does not reach back that far, or has a gap there: what was not measured may have been a peak.
    """
    intervals = ceil(stabilization_seconds / series.interval_seconds)
    if intervals == 0:
        nothing = Busiest(rate=0.0, tokens=None)
        return Peak(rate=0.0, prompts=nothing, outputs=nothing)
    if len(series) < intervals:
        return None
    rate = series.rate[-intervals:]
    highest = float(np.max(rate))
    if isnan(highest):
        return None
    return Peak(
        rate=highest,
        prompts=_busiest(rate, series.isl_tokens[-intervals:]),
        outputs=_busiest(rate, series.osl_tokens[-intervals:]),
    )


def _busiest(rate: NDArray[np.float64], tokens: NDArray[np.float64]) -> Busiest:
    if np.isnan(tokens).all():
        return Busiest(rate=float(np.max(rate)), tokens=None)
    place = int(np.nanargmax(rate * tokens))
    return Busiest(rate=float(rate[place]), tokens=float(tokens[place]))
