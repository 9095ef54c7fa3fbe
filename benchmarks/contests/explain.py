"""Where the requests went that one run lost and another one served: turned away, late or slow, and with which split."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.result import Result

FLIP_SECONDS: Final = 10.0
"""How long after a flip a loss is counted as its cost."""


def lost(ours: Result, other: Result, slo: LatencyTargets) -> dict[str, int]:
    """Return the requests of `other`'s goodput that `ours` has not, by cause; `gained` are those the other way round.

    A cause is how the request ended, and whether a flip was under way, the split was another one, or neither.
    """
    mine, theirs = ours.within(slo), other.within(slo)
    missing = theirs & ~mine
    at = ours.workload.arrival_seconds
    flips = np.array([sample.seconds for sample in ours.fleet[1:]])
    since = at - flips[np.maximum(np.searchsorted(flips, at, side="right") - 1, 0)] if len(flips) else at + FLIP_SECONDS
    flipping = (since >= 0) & (since < FLIP_SECONDS)
    elsewhere = _prefilling(ours) != _prefilling(other)
    late = ours.ttft_seconds > slo.ttft_seconds
    ends = {
        "turned away": ours.outcome == Outcome.REJECTED,
        "late": (ours.outcome == Outcome.SERVED) & late,
        "slow": (ours.outcome == Outcome.SERVED) & ~late,
        "failed": (ours.outcome == Outcome.FAILED) | (ours.outcome == Outcome.PENDING),
    }
    places = {
        "after a flip": flipping,
        "other split": elsewhere & ~flipping,
        "same split": ~elsewhere & ~flipping,
    }
    counts = {
        f"{end}, {place}": int((missing & ended & there).sum())
        for end, ended in ends.items()
        for place, there in places.items()
    }
    return {cause: count for cause, count in counts.items() if count} | {"gained": int((mine & ~theirs).sum())}


def _prefilling(result: Result) -> NDArray[np.float64]:
    """Prefill workers (mixed ones are half) when each request arrived."""
    begins = np.array([sample.seconds for sample in result.fleet])
    counts = np.array([sample.prefill + sample.mixed / 2 for sample in result.fleet])
    present: NDArray[np.float64] = counts[np.searchsorted(begins, result.workload.arrival_seconds, side="right") - 1]
    return present
