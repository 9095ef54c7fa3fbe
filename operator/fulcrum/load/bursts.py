"""How unevenly requests arrive: the index of dispersion of counts (variance over mean; 1 for Poisson)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

import numpy as np

SPAN_SECONDS: Final = 2.0
"""Length of the spans in which arrivals are counted: about a TTFT promise, and a turn of the control loop."""
MEMORY_SECONDS: Final = 300.0
"""How far back they are counted."""
_FEWEST_SPANS: Final = 10
_SIGMAS: Final = 2.0


def dispersion(counts: Sequence[float]) -> float | None:
    """Return the index of dispersion of `counts` of equal spans, at least 1; None while there are too few.

    The smaller of two estimates: the variance takes a trend for bursts, the differences of neighbours take a beat for
    more than it is. What may be chance (of a Poisson process, n spans tell it to sqrt(2/n)) is none.
    """
    spans = len(counts)
    values = np.asarray(counts, dtype=np.float64)
    mean = float(values.mean()) if spans else 0.0
    if spans < _FEWEST_SPANS or mean <= 0:
        return None
    steps = np.diff(values)
    index = min(float(values.var()), float((steps * steps).mean()) / 2) / mean
    return index if index > 1 + _SIGMAS * sqrt(2 / spans) else 1.0
