"""Fulcrum itself: the production planner, forecaster and router, fed with what production would measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.balance import CreateWorker, GatewayState, Snapshot, WorkerPhase, plan, worker_revision
from fulcrum.balance import Worker as PlannedWorker
from fulcrum.balance.demand import Slo
from fulcrum.balance.outlook import Outlook
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.fleet import CLUSTER, Pod
from fulcrum.simulation.front_door import FrontDoor
from fulcrum.simulation.policy import Policy, Turn
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import Worker

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall-clock time of second 0."""
_PHASE_RUNNING, _PHASE_PENDING = WorkerPhase.RUNNING, WorkerPhase.PENDING


class Ours(Policy):
    """`balance.plan` on a Snapshot each turn, its actions carried out; `admission` and `routing` for each request."""

    def __init__(
        self,
        spec: InferenceClusterSpec,
        *,
        speeds: Mapping[str, WorkerSpeed],
        initial: Sequence[tuple[str, Role]] | None = None,
        start_seconds: float | None = None,
        history: LoadSeries | None = None,
        forecaster: Forecaster | None = None,
        window_seconds: float = 60.0,
        turn_seconds: float = 10.0,
        admission: AdmissionPolicy | None = None,
        name: str = "ours",
    ) -> None:
        """`speeds` by pool are what the planner believes; `initial` defaults to what the plan makes of nothing.

        `history` is load from before second 0, as Prometheus would have it (its `end_seconds` is 0). A turn comes when
        the plan asks for it, and every `turn_seconds` at the latest. `admission` replaces the policy of the spec.
        """
        self.name = name
        self._spec = spec
        self._admission = admission if admission is not None else spec.admission.policy
        self._speeds = dict(speeds)
        self._start_seconds = start_seconds
        self._history = history
        self._window_seconds = window_seconds
        self._turn_seconds = turn_seconds
        self._status = InferenceClusterStatus()
        self._revisions = {pool.name: worker_revision(cluster=CLUSTER, spec=spec, pool=pool) for pool in spec.pools}
        self._initial = list(initial) if initial is not None else self._from_nothing()
        balance = spec.balance
        self._interval_seconds = seconds(balance.forecast.interval)
        self._stabilization_seconds = seconds(balance.scale_down.stabilization)
        self._forecaster = forecaster or Forecaster(
            method=balance.forecast.method,
            season_seconds=seconds(balance.forecast.seasonality),
            quantile=balance.forecast.quantile,
            clock=lambda: 0.0,
        )
        self._forecast: Forecast | None = None
        self._forecast_at = -1.0
        self.forecasts: list[tuple[float, Forecast]] = []
        """Every forecast that was made, with its time."""

    def initial(self) -> Sequence[tuple[str, Role]]:
        return self._initial

    def front_door(self, cluster: ClusterModel, slo: Slo) -> FrontDoor:
        return FrontDoor(slo=slo, speeds=self._speeds, policy=self._admission, classes=self._spec.admission.classes)

    def on_tick(self, view: View) -> Turn:
        snapshot = Snapshot(
            name=CLUSTER,
            generation=1,
            spec=self._spec,
            workers=tuple(self._worker(pod, view.now) for pod in view.pods),
            gateway=GatewayState(desired=1, ready=1, cluster_ip="10.0.0.1"),
            status=self._status,
            outlook=self._outlook(view),
        )
        decided = plan(snapshot, _time(view.now))
        self._status = decided.status
        return Turn(actions=decided.actions, again_seconds=min(decided.requeue_after_seconds, self._turn_seconds))

    def _from_nothing(self) -> list[tuple[str, Role]]:
        nothing = Snapshot(name=CLUSTER, generation=1, spec=self._spec, outlook=Outlook(speeds=self._speeds))
        actions = plan(nothing, START).actions
        return [(action.pool, action.role) for action in actions if isinstance(action, CreateWorker)]

    def _outlook(self, view: View) -> Outlook:
        if view.now < min(self._window_seconds, self._turn_seconds):
            return Outlook(speeds=self._speeds, start_seconds=self._start_seconds, unknown="the simulation begins")
        series = self._series(view)
        if series.end_seconds > self._forecast_at:
            self._forecast_at = series.end_seconds
            horizon = self._spec.balance.forecast.horizon
            horizon_seconds = seconds(horizon) if horizon != "auto" else (self._start_seconds or 0.0)
            self._forecast = self._forecaster.update(
                series, horizon_seconds=max(horizon_seconds, self._interval_seconds)
            )
            if self._forecast is not None:
                self.forecasts.append((view.now, self._forecast))
        reach = int(np.ceil(self._stabilization_seconds / self._interval_seconds))
        recent = series.rate[-reach:] if reach else series.rate[:0]
        return Outlook(
            traffic=view.traffic(self._window_seconds),
            forecast=self._forecast,
            speeds=self._speeds,
            start_seconds=self._start_seconds,
            peak_rate=float(np.nanmax(recent)) if len(recent) >= max(reach, 1) else None,
        )

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

    def _worker(self, pod: Pod, now: float) -> PlannedWorker:
        worker = pod.worker
        return PlannedWorker(
            name=pod.name,
            uid=pod.uid,
            pool=pod.pool.name,
            ordinal=pod.ordinal,
            role=pod.role,
            role_epoch=pod.epoch,
            spec_hash=self._revisions[pod.pool.name],
            phase=_PHASE_PENDING if worker is None and not pod.restarts else _PHASE_RUNNING,
            ready=worker is not None,
            deleting=pod.deleting,
            pod_ip="10.0.0.2" if worker is not None else None,
            restarts=pod.restarts,
            role_since=_maybe_time(pod.role_since),
            created=_time(pod.created_seconds),
            ready_since=_maybe_time(pod.ready_since),
            draining_since=_maybe_time(pod.draining_since),
            draining_from=pod.draining_from,
            load=load_report(pod, worker) if worker is not None else None,
            role_told=True,
        )


def load_report(pod: Pod, worker: Worker) -> LoadReport:
    """Return what the agent of a ready worker would answer to `GET /load`."""
    speed = worker.speed
    coefficients = getattr(speed, "coefficients", None)
    return LoadReport(
        role=pod.role,
        role_epoch=pod.epoch,
        ready=True,
        draining=pod.role is Role.DRAINING,
        running=worker.running,
        waiting=len(worker.waiting) + worker.loading,
        queued_prompt_tokens=worker.queued_tokens,
        kv_usage=worker.kv_usage,
        kv_held_for_peers=worker.held_blocks / worker.kv_capacity_blocks,
        kv_capacity_tokens=speed.kv_capacity_tokens,
        speed=coefficients if isinstance(coefficients, SpeedCoefficients) else None,
        work=WorkCounters(
            prompts=worker.prompts,
            prompt_tokens=worker.prompt_tokens,
            cached_tokens=worker.cached_tokens,
            prefill_seconds=worker.prefill_seconds,
            decode_tokens=worker.decode_tokens,
            decode_seconds=worker.decode_seconds,
        ),
        max_batch=speed.max_batch,
        max_batched_tokens=worker.max_batched_tokens,
    )


def _time(virtual_seconds: float) -> datetime:
    return START + timedelta(seconds=virtual_seconds)


def _maybe_time(virtual_seconds: float | None) -> datetime | None:
    return None if virtual_seconds is None else _time(virtual_seconds)
