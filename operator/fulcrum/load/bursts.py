"""How unevenly requests arrive: the index of dispersion of counts (variance over mean; 1 for Poisson)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from fulcrum.load.tuning import TUNING


def dispersion(counts: Sequence[float]) -> float | None:
    """Return the index of dispersion of `counts` of equal spans, at least 1; None while there are too few.

    The smaller of two estimates: the variance takes a trend for bursts, the differences of neighbours take a beat for
    more than it is. What may be chance (of a Poisson process, n spans tell it to sqrt(2/n)) is none.
    """
    spans = len(counts)
    values = np.asarray(counts, dtype=np.float64)
    mean = float(values.mean()) if spans else 0.0
    # A variance is as sure as a mean with twice as many of them.
    if spans < 2 * TUNING.least_seen or mean <= 0:
        return None
    steps = np.diff(values)
    index = min(float(values.var()), float((steps * steps).mean()) / 2) / mean
    return index if index > 1 + TUNING.sigmas * sqrt(2 / spans) else 1.0
