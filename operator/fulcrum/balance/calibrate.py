"""Where what is measured differs from what the model says of the workers that stand: as how heavy the load then counts.

What stands is the one layout whose attainment is known. Where fewer requests are inside the SLO than the model says,
the role that is late is taken to have more work; where more are, both have less. A change is then judged by what there
is to gain, and the error of the model is not taken for a gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from fulcrum.balance.assign import layout_of
from fulcrum.balance.estimate import LoadEstimate, deviation, served_share
from fulcrum.balance.snapshot import Snapshot
from fulcrum.balance.tuning import TUNING
from fulcrum.load.demand import Load, Slo
from fulcrum.load.traffic import Traffic
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel


def calibrated(
    snapshot: Snapshot, now: datetime, load: LoadEstimate, model: PerformanceModel, slo: Slo
) -> LoadEstimate | None:
    """Return the estimate as heavy as what was measured makes it; None where the model agrees, or nothing compares.

    Only what was measured with the present roles counts: while the window reaches back beyond a change, or the load
    changed within it, there is nothing to compare.
    """
    traffic = snapshot.outlook.traffic
    if traffic is None or load.current.rate <= 0 or not _stood(snapshot, now, traffic, model):
        return None
    standing = layout_of(worker for worker in snapshot.workers if worker.serving)
    return _heavier(traffic, load, model, standing, slo) or _lighter(traffic, load, model, standing)


def _stood(snapshot: Snapshot, now: datetime, traffic: Traffic, model: PerformanceModel) -> bool:
    """Report whether the workers that serve now are those that were measured, and the model knows them all."""
    since = now - timedelta(seconds=traffic.served_window_seconds or traffic.window_seconds)
    serving = [worker for worker in snapshot.workers if worker.serving]
    changes = [moment for worker in serving for moment in (worker.role_since, worker.ready_since) if moment is not None]
    return (
        all(model.knows(worker.pool) for worker in serving)
        and all(moment <= since for moment in changes)
        and not any(worker.draining_since for worker in snapshot.workers)
    )


def _heavier(
    traffic: Traffic, load: LoadEstimate, model: PerformanceModel, standing: Layout, slo: Slo
) -> LoadEstimate | None:
    measured, expected = served_share(traffic), model.attainment(standing, load.current)
    late = (traffic.ttft_p90_seconds or 0.0) > slo.ttft_seconds
    slow = (traffic.tpot_p90_seconds or 0.0) > slo.tpot_seconds
    if load.promise_kept or measured + deviation(traffic, expected) >= expected or not (late or slow):
        return None

    def shifted(load: Load, factor: float) -> Load:
        return load.shifted(prefill=factor if late else 1.0, decode=factor if slow else 1.0)

    factor = _factor(
        1.0, TUNING.most_correction, lambda f: model.attainment(standing, shifted(load.current, f)), measured
    )
    if factor is None:
        return None
    more = shifted(load.current, factor)
    return replace(load, current=more, lower=load.lower.plus(more, less=load.current))


def _lighter(traffic: Traffic, load: LoadEstimate, model: PerformanceModel, standing: Layout) -> LoadEstimate | None:
    """Lengths that changed within the window (`isl_seen`) say that what ended belongs to another load."""
    came = traffic.rate * traffic.window_seconds
    changed = (traffic.served_window_seconds or traffic.window_seconds) != traffic.window_seconds
    if traffic.attainment is None or changed or (traffic.isl_seen or came) < TUNING.steady_share * came:
        return None
    rate = load.current.rate
    measured = traffic.attainment - deviation(traffic, traffic.attainment) - TUNING.estimate_error
    if model.goodput(standing, load.current) >= measured * rate:
        return None

    def shifted(factor: float) -> Load:
        return load.current.shifted(prefill=factor, decode=factor)

    least = 1 / TUNING.most_correction
    factor = _factor(least, 1.0, lambda f: model.goodput(standing, shifted(f)) / rate, measured)
    return replace(load, current=shifted(least if factor is None else factor))


def _factor(low: float, high: float, share: Callable[[float], float], measured: float) -> float | None:
    """Return the factor on the load at which the model says what was `measured`; None: none between the two does."""
    if not share(low) > measured >= share(high):
        return None
    for _ in range(TUNING.correction_steps):
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) <= measured else (middle, high)
    return low
