"""When requests arrive: rates over time, and the arrivals that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rate = Callable[[Floats], Floats]
"""Requests per second at each of the given seconds."""

DAY_SECONDS: Final = 86_400.0
_MOST_GRID_POINTS: Final = 2_000_000
_CLOCK_CV: Final = 1e-3
"""Below this a process is a clock."""


def constant(rate: float) -> Rate:
    """The same rate at all times."""
    return lambda at: np.full_like(at, rate)


def ramp(start_rate: float, end_rate: float, *, begin_seconds: float = 0.0, end_seconds: float) -> Rate:
    """From one rate to another in a straight line; constant before and after."""
    return lambda at: np.interp(at, [begin_seconds, end_seconds], [start_rate, end_rate])


def sine(low_rate: float, high_rate: float, *, period_seconds: float, phase: float = 0.0) -> Rate:
    """Between two rates, from the mean upwards; `phase` in parts of a period."""
    mean, swing = (low_rate + high_rate) / 2, (high_rate - low_rate) / 2
    return lambda at: mean + swing * np.sin(2 * np.pi * (at / period_seconds + phase))


def seasons(mean_rate: float, *, day: float = 0.6, weekend: float = 0.5, peak_hour: float = 15.0) -> Rate:
    """A day that swings by `day` around its mean, highest at `peak_hour`, and two days in seven at `weekend` of it.

    Second 0 is a Monday's midnight.
    """

    def rate(at: Floats) -> Floats:
        hours = np.cos(2 * np.pi * (at / DAY_SECONDS - peak_hour / 24))
        weekday = (at // DAY_SECONDS) % 7
        rates: Floats = mean_rate * (1 + day * hours) * np.where(weekday >= 5, weekend, 1.0)
        return rates

    return rate


def ladder(steps: Sequence[tuple[float, float]]) -> Rate:
    """(seconds, rate) one after the other; the last rate stays."""
    ends = np.cumsum([seconds for seconds, _ in steps])
    rates = np.array([rate for _, rate in steps])
    return lambda at: rates[np.minimum(np.searchsorted(ends, at, side="right"), len(rates) - 1)]


def arrivals(rate: Rate, *, seconds: float, random: np.random.Generator, cv: float = 1.0) -> Floats:
    """Arrival times up to `seconds` of a renewal process that runs as fast as `rate`.

    Gaps are Gamma with coefficient of variation `cv`: 1 is Poisson, above 1 bursts (BurstGPT fits Gamma too), 0 a
    clock. Unit-rate arrivals are mapped through the inverse of the integrated rate, which for Poisson is exact.
    """
    if not (seconds > 0 and cv >= 0):
        raise ValueError(f"seconds must be above 0 and cv at least 0, got {seconds=}, {cv=}")
    points = int(np.clip(seconds * 100, 1000, _MOST_GRID_POINTS))
    grid = np.linspace(0.0, seconds, points + 1)
    middle = rate((grid[:-1] + grid[1:]) / 2)
    if np.any(middle < 0) or not np.all(np.isfinite(middle)):
        raise ValueError("a rate is negative or not finite")
    integral = np.concatenate([[0.0], np.cumsum(middle) * (seconds / points)])
    total = float(integral[-1])
    expected = total + 6 * max(cv, 1.0) * np.sqrt(total + 1) + 10
    gaps = random.gamma(1 / cv**2, cv**2, int(expected)) if cv > _CLOCK_CV else np.ones(int(expected))
    ticks = np.cumsum(gaps)
    while ticks[-1] < total:
        ticks = np.concatenate([ticks, ticks[-1] + np.cumsum(random.gamma(1 / cv**2, cv**2, len(gaps)))])
    return np.interp(ticks[ticks < total], integral, grid)
