"""Fulcrum itself: the production planner, forecaster and router, fed with what production would measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import numpy as np

from fulcrum.api.durations import seconds
from fulcrum.api.gateway import PairsReport
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide import GatewayState, ObservedWorker, Snapshot, WorkerPhase
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.peak import Peak, peak_of
from fulcrum.decide.rehearsed import Rehearsed, Wanted
from fulcrum.decide.tuning import TUNING
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries
from fulcrum.load.demand import LatencyTargets
from fulcrum.load.traffic import traffic_window_seconds
from fulcrum.report import plan
from fulcrum.rollout import CreateWorker, worker_revision
from fulcrum.routing.kv_routes import shares_of
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.fleet import CLUSTER, Pod
from fulcrum.simulation.load_report import load_report
from fulcrum.simulation.policy import Policy, TickResult, expected_transfers, known_speeds
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.view import View

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall-clock time of second 0."""
_FIRST_SHARE: Final = 0.5
"""Traffic is unknown until this share of its window was seen (`telemetry.scrape_source`)."""
_PHASE_RUNNING, _PHASE_PENDING = WorkerPhase.RUNNING, WorkerPhase.PENDING


class Rehearser(Protocol):
    """Plays what plans want to be rehearsed."""

    @property
    def answer(self) -> Rehearsed | None:
        """The last one."""

    def distrusts(self, now: float) -> bool:
        """Report whether nothing is done by plays, at second `now`."""

    def ask(self, wanted: Wanted, view: View, gateways: Sequence[SimulatedGateway]) -> None:
        """Take a question, whose answer comes later."""


class Ours(Policy):
    """`balance.plan` on a Snapshot each turn, its actions carried out; `admission` and `routing` for each request."""

    watches_pods = True

    def __init__(
        self,
        spec: InferenceClusterSpec,
        *,
        speeds: Mapping[str, WorkerSpeed] | None = None,
        initial: Sequence[tuple[str, Role]] | None = None,
        start_seconds: float | None = None,
        history: LoadSeries | None = None,
        forecaster: Forecaster | None = None,
        least_turn_seconds: float = 0.0,
        admission: AdmissionPolicy | None = None,
        rehearsals: Rehearser | None = None,
        name: str = "ours",
    ) -> None:
        """`initial` defaults to what the plan makes of nothing; `admission` replaces the policy of the spec.

        `rehearsals` answer what plans want to be rehearsed; None: roles change only beyond doubt.

        `speeds` by pool are what the planner believes, `start_seconds` what it has measured from Pod to readiness; both
        default to the truth. `history` is load from before second 0, as Prometheus would have it (its `end_seconds` is
        0). A turn comes when the plan asks for it; `least_turn_seconds` above 0 is quicker to simulate, and coarser.
        """
        self.name = name
        self._spec = spec
        self._admission = admission if admission is not None else spec.admission.policy
        self._speeds = dict(speeds) if speeds is not None else None
        self._start_seconds = start_seconds
        self._history = history
        self._window_seconds = traffic_window_seconds(spec)
        self._least_turn_seconds = least_turn_seconds
        self._rehearsals = rehearsals
        self._status = InferenceClusterStatus()
        self._revisions = {pool.name: worker_revision(cluster=CLUSTER, spec=spec, pool=pool) for pool in spec.pools}
        self._initial = initial
        balance = spec.balance
        self._interval_seconds = seconds(balance.forecast.interval)
        self._stabilization_seconds = seconds(balance.scale_down.stabilization)
        self._forecaster = forecaster or Forecaster(
            method=balance.forecast.method,
            season_seconds=seconds(balance.forecast.seasonality),
            quantile=balance.forecast.fixed_quantile,
            attainment=spec.slo.attainment,
            clock=lambda: 0.0,
        )
        self._gateways: list[SimulatedGateway] = []
        self._forecast: Forecast | None = None
        self._forecast_at = 0.0
        self._peak: Peak | None = None
        self.forecasts: list[tuple[float, Forecast]] = []
        """Every forecast that was made, with its time."""

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        if self._initial is not None:
            return self._initial
        nothing = Snapshot(
            name=CLUSTER, generation=1, spec=self._spec, measurements=Measurements(speeds=self._known(cluster))
        )
        actions = plan(nothing, START).actions
        return [(action.pool, action.role) for action in actions if isinstance(action, CreateWorker)]

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        gateway = SimulatedGateway(
            slo=slo,
            speeds=known_speeds(cluster),
            transfers=expected_transfers(cluster),
            policy=self._admission,
            classes=self._spec.admission.classes,
            gateways=cluster.gateways,
            admits={pool.name: pool.admits for pool in self._spec.pools},
            queue=self._spec.admission.queue,
        )
        self._gateways.append(gateway)
        return gateway

    def on_tick(self, view: View) -> TickResult:
        snapshot = Snapshot(
            name=CLUSTER,
            generation=1,
            spec=self._spec,
            workers=tuple(self._worker(pod) for pod in view.pods),
            gateway=GatewayState(desired=1, ready=1, cluster_ip="10.0.0.1"),
            status=self._status,
            measurements=self._measurements(view),
        )
        decided = plan(snapshot, _time(view.now))
        self._status = decided.status
        if self._rehearsals is not None and decided.wanted is not None:
            self._rehearsals.ask(decided.wanted, view, self._gateways)
        shares = shares_of((route.prefill, route.decode, route.share) for route in decided.status.routes or ())
        for gateway in self._gateways:
            gateway.view.kv_routes.set(shares)
        return TickResult(
            actions=decided.actions, again_seconds=max(decided.requeue_after_seconds, self._least_turn_seconds)
        )

    def _known(self, cluster: ClusterModel) -> dict[str, WorkerSpeed]:
        return self._speeds if self._speeds is not None else known_speeds(cluster)

    def _measurements(self, view: View) -> Measurements:
        speeds = self._known(view.cluster)
        start_seconds = self._start_seconds
        if start_seconds is None:
            start_seconds = max(pool.start_seconds for pool in view.cluster.pools)
        if view.now < _FIRST_SHARE * self._window_seconds:
            return Measurements(speeds=speeds, start_seconds=start_seconds, unknown="Nothing has been measured yet.")
        interval_seconds = self._interval_seconds
        if view.now >= self._forecast_at + interval_seconds:
            self._forecast_at = view.now // interval_seconds * interval_seconds
            self._look_ahead(view, start_seconds)
        return Measurements(
            traffic=view.traffic(self._window_seconds),
            forecast=self._forecast,
            speeds=speeds,
            start_seconds=start_seconds,
            peak=self._peak,
            pairs=tuple(PairsReport(rates=gateway.view.transfers.report()) for gateway in self._gateways),
            rehearses=self._rehearsals is not None,
            rehearsed=self._rehearsals.answer if self._rehearsals is not None else None,
            plays_distrusted=self._rehearsals is not None and self._rehearsals.distrusts(view.now),
        )

    def _look_ahead(self, view: View, start_seconds: float) -> None:
        """Forecast once per interval, as the controller does."""
        series = self._series(view)
        horizon = self._spec.balance.forecast.horizon
        horizon_seconds = start_seconds + TUNING.tick_seconds if horizon == "auto" else seconds(horizon)
        self._forecast = self._forecaster.update(series, horizon_seconds=horizon_seconds)
        if self._forecast is not None:
            self.forecasts.append((view.now, self._forecast))
        self._peak = peak_of(series, self._stabilization_seconds)

    def _series(self, view: View) -> LoadSeries:
        series, history = view.series(self._interval_seconds), self._history
        if history is None:
            return series
        return LoadSeries(
            interval_seconds=self._interval_seconds,
            end_seconds=series.end_seconds,
            rate=np.concatenate([history.rate, series.rate]),
            isl_tokens=np.concatenate([history.isl_tokens, series.isl_tokens]),
            osl_tokens=np.concatenate([history.osl_tokens, series.osl_tokens]),
        )

    def _worker(self, pod: Pod) -> ObservedWorker:
        return ObservedWorker(
            name=pod.name,
            uid=pod.uid,
            pool=pod.pool.name,
            ordinal=pod.ordinal,
            role=pod.role,
            role_epoch=pod.epoch,
            spec_hash=self._revisions[pod.pool.name],
            phase=_PHASE_RUNNING if pod.ranks or pod.restarts else _PHASE_PENDING,
            ready=bool(pod.ranks),
            deleting=pod.deleting,
            pod_ip="10.0.0.2" if pod.ranks else None,
            restarts=pod.restarts,
            role_since=_maybe_time(pod.role_since),
            created=_time(pod.created_seconds),
            ready_since=_maybe_time(pod.ready_since),
            draining_since=_maybe_time(pod.draining_since),
            draining_from=pod.draining_from,
            load=load_report(pod) if pod.ranks else None,
            role_acknowledged=True,
        )


def _time(virtual_seconds: float) -> datetime:
    return START + timedelta(seconds=virtual_seconds)


def _maybe_time(virtual_seconds: float | None) -> datetime | None:
    return None if virtual_seconds is None else _time(virtual_seconds)
