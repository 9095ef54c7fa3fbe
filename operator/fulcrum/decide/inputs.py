"""Stage `observe`: everything that one decision is made from, gathered once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fulcrum.api.durations import seconds
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdmissionPolicy, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.estimate import LoadEstimate, Unknown, estimate
from fulcrum.decide.measurements import Measurements, learnt_transfers
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.decide.snapshot import ObservedWorker, Snapshot
from fulcrum.load.demand import LatencyTargets, promised
from fulcrum.load.traffic import Traffic
from fulcrum.performance.model import PerformanceModel, reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is known about one cluster: enough to decide by."""

    spec: InferenceClusterSpec
    workers: tuple[ObservedWorker, ...]
    status: InferenceClusterStatus
    """As it stands: what the last decision wanted, and what was said of it."""
    measurements: Measurements
    now: datetime
    load: LoadEstimate
    model: PerformanceModel
    """For numbers of workers. Its SLO is wider where no hardware at hand keeps the promise, beyond doubt."""
    flips_model: PerformanceModel
    """For roles. Its SLO is wider where none keeps it for what was measured: else all splits would look equally bad."""
    promise: LatencyTargets
    """The SLO of the spec."""

    @property
    def pools(self) -> list[PoolBounds]:
        """The pools whose speed is known."""
        return [
            bounds_of(pool, low=pool.workers.min, high=pool.workers.max)
            for pool in self.spec.pools
            if self.model.knows(pool.name)
        ]

    @property
    def reason(self) -> Reason:
        """What most of all makes the current load what it is."""
        return Reason.LOAD_FORECAST if self.load.forecast_leads else Reason.LOAD_SHIFTED


def gather(snapshot: Snapshot, now: datetime) -> Inputs | Unknown:
    """Gather what a decision needs; Unknown names the first thing that is missing."""
    spec, measurements = snapshot.spec, snapshot.measurements
    speeds = {pool.name: measurements.speeds[pool.name] for pool in spec.pools if pool.name in measurements.speeds}
    used = {worker.pool for worker in snapshot.workers}
    missing = [pool.name for pool in spec.pools if pool.name not in speeds and pool.name in used]
    if missing or not speeds:
        names = ", ".join(missing or [pool.name for pool in spec.pools])
        return Unknown(message=f"It is not known yet how fast the workers of pool {names} are.")
    promise = promised(spec)
    load = estimate(measurements, promise)
    if isinstance(load, Unknown):
        return load
    turns_away = spec.admission.policy is not AdmissionPolicy.OFF
    admits = {pool.name: pool.admits for pool in spec.pools if pool.admits is not None}
    transfers = learnt_transfers(measurements.pairs)
    model, flips_model = (
        PerformanceModel(
            speeds, reachable(speeds, promise, each), turns_away=turns_away, admits=admits, transfers=transfers
        )
        for each in (load.lower, load.current)
    )
    if flips_model.slo == model.slo:
        flips_model = model
    return Inputs(
        spec=spec,
        workers=snapshot.workers,
        status=snapshot.status,
        measurements=measurements,
        now=now,
        load=load,
        model=model,
        flips_model=flips_model,
        promise=promise,
    )


def payback_seconds(spec: InferenceClusterSpec, traffic: Traffic | None) -> float:
    """Return how long a flip may take to pay for itself: its dwell, or without one as long as the load was watched."""
    dwell = seconds(spec.balance.flip.min_dwell)
    return dwell if dwell > 0 else max(traffic.window_seconds if traffic is not None else 0.0, 1.0)
