"""Every number that shapes what the queueing estimates say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Default, unit and reason of each; `docs/concepts/sizing.md` says what the fitted ones were held against."""

    cells: int = 96
    """Cells in which the distribution of the requests in a pool is summed up."""
    points: int = 32
    """Lengths that a log-normal distribution is summed up over (Gauss-Legendre on the logarithm)."""
    sigmas: float = 4.0
    """Standard deviations from the middle at which distributions are cut off: 0.006 % of a normal one is outside."""
    precision: float = 0.03
    """Width at which the search for a share ends, before interpolation, and by which a step can be too slow and be
    taken for one that is not, as a share of the promise."""
    least_share: float = 1e-6
    """Share of the requests below which a part of them is left out: it changes no estimate."""
    most_load: float = 0.98
    """Share of its time that a role works when the queue is kept as short as a promise needs."""
    shortest_first: float = 0.8
    """How far early rejection is from letting prompts in by chance (0) on the way to the shortest only (1). Fitted to
    `benchmarks/splits.py`."""
    found_per_sharing: float = 1.3
    """Requests per server of the birth-death process for each one that shares a step. Fitted to simulated pools."""
    residual_power: float = 0.6
    """Power of a step's residual life against its mean: the least loaded worker is not a random one. Fitted to the
    same."""


TUNING: Final = Tuning()
