"""Stage `observe`: what one decision is made from, gathered once, with the load that the roles must carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from math import sqrt

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.measurements import Measurements, deviation, learnt_transfers, served_share
from fulcrum.decide.peak import Peak
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.decide.rehearsed import few_miss
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.decide.tuning import TUNING
from fulcrum.forecast.result import Forecast
from fulcrum.load.demand import Demand, LatencyTargets, Load, promised
from fulcrum.load.lengths import standard_error
from fulcrum.load.traffic import Traffic
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.reach import reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Relative standard errors of what was measured: arrivals are Poisson, lengths are as spread as they were seen."""

    rate: float
    isl: float
    osl: float

    def sure_rate(self, measured_rate: float) -> float:
        """Return requests/s that arrive at least.

        The lower bound of a count, whose root has the same error whatever the count is: of a few requests some are
        left, where as many standard errors below their number none would be.
        """
        return measured_rate * max(0.0, 1 - TUNING.noise_sigmas / 2 * self.rate) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    """The load that a decision is made for, and how sure it is."""

    current: Load
    """Arrivals of the next minute. What waits in an engine is no part of it: no flip moves it elsewhere."""
    lower: Load
    """What there is at least: rate and lengths two standard errors below what was measured."""
    upper: Load
    """What there may be at most: as far above."""
    forecast: Load
    """The most of the forecast's horizon at its quantile: what Pods are started for; without a forecast the lower
    bound."""
    trailing_maximum: Load | None
    """The most of the past `scaleDown.stabilization` and of what is ahead; None: no worker is given back."""
    measured_rate: float
    """Requests per second."""
    promise_kept: bool
    """The promise is kept, as far as it was measured."""
    serves_all: bool
    """Of all requests, those turned away included, as many as promised were inside the SLO. False: not known, too."""
    answers_at_least: bool
    """No answer has ended yet: they are at least as long as the load says."""
    forecast_leads: bool
    """The forecast expects clearly more than what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """There is nothing to decide by; the message says why, for people."""

    message: str


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
    well: bool
    """So few requests miss the promise, those turned away included, that there is nothing to look for."""

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


def gather(
    spec: InferenceClusterSpec,
    workers: tuple[ObservedWorker, ...],
    status: InferenceClusterStatus,
    measurements: Measurements,
    now: datetime,
) -> Inputs | Unknown:
    """Gather what a decision needs; Unknown names the first thing that is missing."""
    speeds = {pool.name: measurements.speeds[pool.name] for pool in spec.pools if pool.name in measurements.speeds}
    used = {worker.pool for worker in workers}
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
    slo = reachable(speeds, promise, load.lower)
    model = FluidModel(speeds, slo, promise=promise, admits=admits, transfers=transfers)
    return Inputs(
        spec=spec,
        workers=workers,
        status=status,
        measurements=measurements,
        now=now,
        load=load,
        model=model,
        promise=promise,
        well=_is_well(measurements.traffic, spec.slo.attainment),
    )


def _is_well(traffic: Traffic | None, attainment: float) -> bool:
    if traffic is None or traffic.attainment is None:
        return traffic is not None and traffic.rate == 0
    return few_miss(1 - traffic.attainment, attainment)


def estimate(measurements: Measurements, slo: LatencyTargets) -> LoadEstimate | Unknown:
    """Return the load to plan for."""
    traffic, forecast = measurements.traffic, measurements.forecast
    if traffic is None:
        return Unknown(message=measurements.unknown or "No source of metrics answers.")
    lengths = _lengths(traffic, forecast)
    if lengths is None:
        if traffic.rate > 0 or (forecast is not None and max(forecast.upper_rate, default=0.0) > 0):
            return Unknown(message=measurements.unknown or "Requests arrive, but their lengths were not measured.")
        lengths = Demand(rate=0.0, isl_tokens=1.0, osl_tokens=1.0)  # no request, no work, whatever the lengths
    now = _measured(traffic, lengths)
    seen = max(traffic.rate * traffic.window_seconds, 1e-9)
    noise = _noise(traffic, now, seen)
    soon = forecast.rate[0] if forecast is not None and forecast.rate else 0.0
    arrivals = replace(now, rate=max(now.rate, soon))
    current = Load.of(arrivals)
    lower = _lower(arrivals, now.rate, noise)
    ahead = _worst(forecast, now) if forecast is not None else lower
    highest = None
    if measurements.peak is not None:
        highest = current.at_least(ahead).at_least(_highest(measurements.peak, now))
    return LoadEstimate(
        current=current,
        lower=lower,
        upper=_upper(arrivals, noise),
        forecast=ahead,
        trailing_maximum=highest,
        measured_rate=now.rate,
        promise_kept=served_share(traffic) + deviation(traffic, slo.attainment) >= slo.attainment,
        serves_all=traffic.attainment is not None
        and traffic.attainment + deviation(traffic, slo.attainment) >= slo.attainment,
        answers_at_least=traffic.osl_at_least,
        forecast_leads=soon > now.rate * (1 + TUNING.noise_sigmas * noise.rate),
    )


def _measured(traffic: Traffic, lengths: Demand) -> Demand:
    return replace(
        lengths,
        isl_cv2=1.0 if traffic.isl_cv2 is None else traffic.isl_cv2,
        osl_cv2=1.0 if traffic.osl_cv2 is None else traffic.osl_cv2,
        prefix_hit=min(max(traffic.prefix_hit or 0.0, 0.0), 1.0),
        dispersion=max(traffic.dispersion or 1.0, 1.0),
        classes=traffic.classes,
    )


def _noise(traffic: Traffic, now: Demand, seen: float) -> Noise:
    ended = seen if traffic.ended is None else max(traffic.ended, 1e-9)
    isl = osl = 1.0  # of what was not measured all may be wrong: no worker flips for it
    if traffic.isl_tokens is not None:
        isl = standard_error(now.isl_cv2, traffic.isl_seen or seen)
    if traffic.osl_tokens is not None:
        osl = standard_error(now.osl_cv2, traffic.osl_seen or ended)
    return Noise(rate=sqrt(now.dispersion / seen), isl=isl, osl=osl)


def _lower(arrivals: Demand, measured_rate: float, noise: Noise) -> Load:
    isl, osl = (max(0.0, 1 - TUNING.noise_sigmas * error) for error in (noise.isl, noise.osl))
    return Load.of(
        replace(
            arrivals,
            rate=noise.sure_rate(measured_rate),
            isl_tokens=max(arrivals.isl_tokens * isl, 1.0),
            osl_tokens=max(arrivals.osl_tokens * osl, 1.0),
        )
    )


def _upper(arrivals: Demand, noise: Noise) -> Load:
    rate, isl, osl = (1 + TUNING.noise_sigmas * error for error in (noise.rate, noise.isl, noise.osl))
    return Load.of(
        replace(
            arrivals,
            rate=arrivals.rate * rate,
            isl_tokens=arrivals.isl_tokens * isl,
            osl_tokens=arrivals.osl_tokens * osl,
        )
    )


def _lengths(traffic: Traffic, forecast: Forecast | None) -> Demand | None:
    """Take measured lengths, else the forecast's; None while none are known."""
    isl, osl = traffic.isl_tokens, traffic.osl_tokens
    if isl is None and forecast is not None and forecast.isl_tokens:
        isl = forecast.isl_tokens[0]
    if osl is None and forecast is not None and forecast.osl_tokens:
        osl = forecast.osl_tokens[0]
    if isl is None or osl is None:
        return None
    return Demand(rate=traffic.rate, isl_tokens=max(isl, 1.0), osl_tokens=max(osl, 1.0))


def _worst(forecast: Forecast, now: Demand) -> Load:
    """Return the step with the most work, for each role by itself."""
    steps = [
        replace(
            now,
            rate=rate,
            isl_tokens=max(forecast.isl_tokens[step], 1.0) if forecast.isl_tokens else now.isl_tokens,
            osl_tokens=max(forecast.osl_tokens[step], 1.0) if forecast.osl_tokens else now.osl_tokens,
        )
        for step, rate in enumerate(forecast.upper_rate)
    ] or [now]
    return Load(
        rate=max(step.rate for step in steps),
        prefill=max(steps, key=lambda step: step.rate * step.isl_tokens),
        decode=max(steps, key=lambda step: step.rate * step.osl_tokens),
    )


def _highest(peak: Peak, now: Demand) -> Load:
    lengths = replace(
        now,
        isl_tokens=peak.prompts.tokens or now.isl_tokens,
        osl_tokens=peak.outputs.tokens or now.osl_tokens,
    )
    return Load(
        rate=peak.rate,
        prefill=replace(lengths, rate=peak.prompts.rate),
        decode=replace(lengths, rate=peak.outputs.rate),
    )
