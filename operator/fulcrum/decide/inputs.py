"""Stage `observe`: everything that one decision is made from, gathered once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.estimate import LoadEstimate, Unknown, estimate
from fulcrum.decide.measurements import Measurements, learnt_transfers
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.decide.snapshot import ObservedWorker, Snapshot
from fulcrum.load.demand import LatencyTargets, promised
from fulcrum.performance.fluid import FluidModel, reachable


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
    model: FluidModel
    """Its SLO is wider where no hardware at hand keeps the promise, beyond doubt."""
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
    def together(self) -> bool:
        """All workers do both roles, and so do more of them.

        An only one has to, which says nothing of others; rehearsals divide them where that serves more.
        """
        mixing = [worker.role is Role.MIXED for worker in self.workers if worker.serving]
        return all(mixing) and len(mixing) >= (1 if self.measurements.rehearses else 2)

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
    admits = {pool.name: pool.admits for pool in spec.pools if pool.admits is not None}
    transfers = learnt_transfers(measurements.pairs)
    model = FluidModel(speeds, reachable(speeds, promise, load.lower), admits=admits, transfers=transfers)
    return Inputs(
        spec=spec,
        workers=snapshot.workers,
        status=snapshot.status,
        measurements=measurements,
        now=now,
        load=load,
        model=model,
        promise=promise,
    )
