"""When fewer requests are inside the SLO than the model says: how much more load would explain it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fulcrum.balance.load import Loads, deviation, served_share
from fulcrum.balance.placing import layout_of
from fulcrum.balance.snapshot import Snapshot
from fulcrum.load.demand import Load, Slo
from fulcrum.performance.model import PerformanceModel

MOST_CORRECTION: Final = 4.0
"""A model that is further off than this is not corrected by guessing at the load."""
CORRECTION_STEPS: Final = 6
"""Halvings: to 5 % of the load."""


def corrected(snapshot: Snapshot, now: datetime, loads: Loads, service: PerformanceModel, slo: Slo) -> Loads | None:
    """Return the loads with what arrives as large as what was measured makes it; None where nothing is amiss.

    Only what was measured with the present roles counts: nothing is corrected while the window reaches back beyond a
    change.
    """
    traffic = snapshot.outlook.traffic
    if traffic is None or loads.near.rate <= 0:
        return None
    since = now - timedelta(seconds=traffic.served_window_seconds or traffic.window_seconds)
    serving = [worker for worker in snapshot.workers if worker.serving]
    # Workers of a pool that the spec no longer has serve what the model cannot explain.
    unknown = any(not service.knows(worker.pool) for worker in serving)
    changes = [moment for worker in serving for moment in (worker.role_since, worker.ready_since) if moment is not None]
    if (
        unknown
        or any(moment > since for moment in changes)
        or any(worker.draining_since for worker in snapshot.workers)
    ):
        return None
    standing = layout_of(serving)
    measured, expected = served_share(traffic), service.attainment(standing, loads.near)
    if loads.kept or measured + deviation(traffic, expected) >= expected:
        return None
    late = (traffic.ttft_p90_seconds or 0.0) > slo.ttft_seconds
    slow = (traffic.tpot_p90_seconds or 0.0) > slo.tpot_seconds
    if not (late or slow):
        return None

    def heavier(load: Load, factor: float) -> Load:
        return load.shifted(prefill=factor if late else 1.0, decode=factor if slow else 1.0)

    low, high = 1.0, MOST_CORRECTION
    explained = service.attainment(standing, heavier(loads.near, high)) <= measured
    for _ in range(CORRECTION_STEPS):
        middle = (low + high) / 2
        enough = service.attainment(standing, heavier(loads.near, middle)) <= measured
        low, high = (low, middle) if enough else (middle, high)
    if low <= 1.0 or not explained:
        return None
    return replace(loads, near=heavier(loads.near, low), lasting=heavier(loads.lasting, low))
