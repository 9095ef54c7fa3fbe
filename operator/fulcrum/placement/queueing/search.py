"""The search for a share of the requests."""

from __future__ import annotations

from collections.abc import Callable

from fulcrum.placement.queueing.tuning import TUNING


def largest_share(excess: Callable[[float], float], *, most: float = 1.0) -> float:
    """Return the largest share up to `most` at which `excess`, which falls, is not below 0; 0 when there is none.

    Interpolated, so that layouts that are close differ by what they are and not by steps of the search.
    """
    low, high, below, above = 0.0, most, 0.0, excess(most)
    if above >= -TUNING.least_share:
        return most
    while high - low > TUNING.precision * most:
        middle = (low + high) / 2
        value = excess(middle)
        if value >= 0.0:
            low, below = middle, value
        else:
            high, above = middle, value
    return low + (high - low) * below / (below - above) if low > 0.0 else 0.0
