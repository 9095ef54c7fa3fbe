"""How a run went over time: the share of requests inside the SLO, and when workers changed their roles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.fleet import FleetSample
from fulcrum.simulation.result import Result


def attainment_by_arrival(result: Result, slo: LatencyTargets, width_seconds: float) -> NDArray[np.float64]:
    """Return the share inside `slo` of the arrivals of each `width_seconds`, 0 to 1; NaN where there are none."""
    window = (result.workload.arrival_seconds // width_seconds).astype(np.int64)
    arrived = np.bincount(window).astype(np.float64)
    within = np.bincount(window, weights=result.within(slo), minlength=len(arrived))
    arrived[arrived == 0] = np.nan
    shares: NDArray[np.float64] = within / arrived
    return shares


def flips(result: Result) -> list[FleetSample]:
    """Return the fleet at each moment at which a worker that was there began to serve in another role."""
    return [
        after
        for before, after in pairwise(result.fleet)
        if after.pods == before.pods
        and any(getattr(after, role) > getattr(before, role) for role in ("prefill", "decode", "mixed"))
    ]
