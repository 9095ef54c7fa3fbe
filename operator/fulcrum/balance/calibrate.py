"""When fewer requests are inside the SLO than the model says of the workers that stand: how much more load explains it.

The present layout is the only one whose attainment is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from fulcrum.balance.assign import layout_of
from fulcrum.balance.estimate import LoadEstimate, deviation, served_share
from fulcrum.balance.snapshot import Worker
from fulcrum.balance.tuning import TUNING
from fulcrum.load.demand import Load, Slo
from fulcrum.load.traffic import Traffic
from fulcrum.performance.model import PerformanceModel


def calibrated(
    load: LoadEstimate,
    model: PerformanceModel,
    slo: Slo,
    *,
    traffic: Traffic | None,
    workers: Sequence[Worker],
    now: datetime,
) -> LoadEstimate | None:
    """Return the estimate as heavy as what was measured makes it; None where the model agrees, or nothing compares.

    Only what was measured with the present roles counts: while the window reaches back beyond a change there is nothing
    to compare.
    """
    if traffic is None or load.current.rate <= 0 or not _stood(workers, now, traffic, model):
        return None
    layout = layout_of(worker for worker in workers if worker.serving)
    measured, expected = served_share(traffic), model.attainment(layout, load.current)
    late = (traffic.ttft_p90_seconds or 0.0) > slo.ttft_seconds
    slow = (traffic.tpot_p90_seconds or 0.0) > slo.tpot_seconds
    if load.promise_kept or measured + deviation(traffic, expected) >= expected or not (late or slow):
        return None

    def heavier(factor: float) -> Load:
        return load.current.shifted(prefill=factor if late else 1.0, decode=factor if slow else 1.0)

    low, high = 1.0, TUNING.most_correction
    if model.attainment(layout, heavier(high)) > measured:
        return None  # that much more load would not explain it: it is another fault
    for _ in range(TUNING.correction_steps):
        middle = (low + high) / 2
        explained = model.attainment(layout, heavier(middle)) <= measured
        low, high = (low, middle) if explained else (middle, high)
    more = heavier(low)
    return replace(load, current=more, lower=load.lower.plus(more, less=load.current)) if low > 1.0 else None


def _stood(workers: Sequence[Worker], now: datetime, traffic: Traffic, model: PerformanceModel) -> bool:
    """Report whether the workers that serve now were measured in these roles, and the model knows them all."""
    since = now - timedelta(seconds=traffic.served_window_seconds or traffic.window_seconds)
    serving = [worker for worker in workers if worker.serving]
    changes = [moment for worker in serving for moment in (worker.role_since, worker.ready_since) if moment is not None]
    return (
        all(model.knows(worker.pool) for worker in serving)
        and all(moment <= since for moment in changes)
        and not any(worker.draining_since for worker in workers)
    )
