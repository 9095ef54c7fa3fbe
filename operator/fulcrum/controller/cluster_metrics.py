"""What the status of each cluster says, as metrics: alerts and dashboards need no access to the API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fulcrum.api.durations import seconds
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide import RoleScale

_CLUSTER = ("fulcrum_namespace", "fulcrum_cluster")
"""The labels that gateways put on their series, too: other names would be renamed by scrape configurations."""
_PREFIX = "fulcrum_operator_cluster_"


@dataclass(frozen=True, slots=True)
class _Said:
    spec: InferenceClusterSpec | None
    status: InferenceClusterStatus
    scales: tuple[RoleScale, ...] = ()


class ClusterMetrics(Collector):
    """The last spec and status of each cluster. Series are made when they are scraped."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], _Said] = {}

    def say(
        self,
        key: tuple[str, str],
        spec: InferenceClusterSpec,
        status: InferenceClusterStatus,
        scales: tuple[RoleScale, ...] = (),
    ) -> None:
        """Remember what is said about the cluster `key` (namespace, name)."""
        self._said[key] = _Said(spec, status, scales)

    def say_stopped(self, key: tuple[str, str], status: InferenceClusterStatus) -> None:
        """Remember the status of a cluster for which nothing can be decided; its last readable spec stands."""
        known = self._said.get(key)
        self._said[key] = _Said(known.spec if known is not None else None, status)

    def forget(self, key: tuple[str, str]) -> None:
        """The cluster is gone, and its series with it."""
        self._said.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the series of all clusters; a figure that is not known has no sample."""
        objective = _gauge("slo_objective_ratio", "Share of requests that the spec promises to keep inside the SLO.")
        promised = _gauge("slo_seconds", "Promised latency.", "metric")
        attainment = _gauge("attainment_ratio", "Share of recent requests inside their SLO.")
        rejected = _gauge("rejected_ratio", "Share of recent requests that were turned away.")
        workers = _gauge("workers", "Workers by role; state is desired, ready or draining.", "role", "state")
        forecast = _gauge("forecast_requests_per_second", "Expected load; bound is mean or upper.", "bound")
        condition = _gauge("condition", "1 while the condition is True, 0 otherwise.", "condition", "reason")
        scale = _gauge(
            "scale_replicas",
            "Mode External: workers by pool and role; state is asked (spec.replicas) or desired (within the bounds).",
            *("pool", "role", "state"),
        )
        for key, said in self._said.items():
            spec, status = said.spec, said.status
            if spec is not None:
                objective.add_metric(key, spec.slo.attainment)
                promised.add_metric((*key, "ttft"), seconds(spec.slo.ttft))
                promised.add_metric((*key, "tpot"), seconds(spec.slo.tpot))
            if status.attainment is not None:
                attainment.add_metric(key, status.attainment)
            if status.rejected_ratio is not None:
                rejected.add_metric(key, status.rejected_ratio)
            for role, counts in status.roles.items():
                for state in ("desired", "ready", "draining"):
                    workers.add_metric((*key, role.value, state), getattr(counts, state))
            if status.forecast is not None:
                forecast.add_metric((*key, "mean"), status.forecast.rate)
                if status.forecast.upper_rate is not None:
                    forecast.add_metric((*key, "upper"), status.forecast.upper_rate)
            for each in status.conditions:
                condition.add_metric((*key, each.type.value, each.reason.value), float(each.status.value == "True"))
            for of_role in said.scales:
                scale.add_metric((*key, of_role.pool, of_role.role.value, "asked"), of_role.asked)
                scale.add_metric((*key, of_role.pool, of_role.role.value, "desired"), of_role.desired)
        yield from (objective, promised, attainment, rejected, workers, forecast, condition, scale)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, about, labels=(*_CLUSTER, *labels))
