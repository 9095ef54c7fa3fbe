"""What the operator says about itself, in Prometheus terms."""

from __future__ import annotations

from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from fulcrum.controller.cluster_metrics import ClusterMetrics

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)
_PLAN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.cluster_states = ClusterMetrics()
        self._registry.register(self.cluster_states)
        self._reconciles = Counter("fulcrum_operator_reconciles", "Reconciles.", ["result"], registry=self._registry)
        self._reconcile_seconds = Histogram(
            "fulcrum_operator_reconcile_seconds", "Time of one reconcile.", buckets=_SECONDS, registry=self._registry
        )
        self._actions = Counter(
            "fulcrum_operator_actions", "Actions carried out.", ["action", "reason"], registry=self._registry
        )
        self._api_calls = Counter(
            "fulcrum_operator_api_calls",
            "Calls to the API server.",
            ["verb", "kind", "result"],
            registry=self._registry,
        )
        self._api_seconds = Histogram(
            "fulcrum_operator_api_call_seconds",
            "Time of one call to the API server.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._clusters = Gauge("fulcrum_operator_clusters", "InferenceClusters under control.", registry=self._registry)
        self._calm_look = Gauge(
            "fulcrum_operator_calm_look_seconds",
            "Time between two looks at the load of a cluster in which nothing changes and few requests are late.",
            registry=self._registry,
        )
        self._leader = Gauge(
            "fulcrum_operator_leader", "1 while this process acts, 0 while another may.", registry=self._registry
        )

        self._decisions = Counter(
            "fulcrum_operator_decisions",
            "Plans that changed something, by mode and the reason of the first change.",
            ["mode", "reason"],
            registry=self._registry,
        )
        self._plan_seconds = Histogram(
            "fulcrum_operator_plan_seconds", "Time of one plan.", buckets=_PLAN_SECONDS, registry=self._registry
        )
        self._forecast_error = Gauge(
            "fulcrum_operator_forecast_error_ratio",
            "Recent error of the forecast as a share of the load (weighted MAPE), by the method in use.",
            ["namespace", "cluster", "method"],
            registry=self._registry,
        )
        self._forecast_fallbacks = Counter(
            "fulcrum_operator_forecast_fallbacks",
            "Fits that failed or took too long, so that another method or an older fit was used.",
            ["method"],
            registry=self._registry,
        )
        self._unknown = Counter(
            "fulcrum_operator_telemetry_unknown",
            "Questions without an answer, by source (prometheus, scrape, agent) and what was asked.",
            ["source", "asked"],
            registry=self._registry,
        )
        self._nonsense = Counter(
            "fulcrum_operator_measurements_dropped",
            "Figures that were no finite number from 0 up and were dropped, by figure.",
            ["figure"],
            registry=self._registry,
        )
        self._rehearsals = Counter(
            "fulcrum_operator_rehearsals",
            "Rehearsals by what came of them: answered, none (not worth one yet), unknown, failed.",
            ["result"],
            registry=self._registry,
        )
        self._plays = Counter("fulcrum_operator_plays", "Layouts that were played.", registry=self._registry)
        self._played_requests = Counter(
            "fulcrum_operator_played_requests", "Requests that were played.", registry=self._registry
        )
        self._rehearsal_wait_seconds = Gauge(
            "fulcrum_operator_rehearsal_longest_wait_seconds",
            "Longest time from a question for a rehearsal to its answer since the start.",
            registry=self._registry,
        )
        self._longest_wait_seconds = 0.0

        # `rate()` begins with the second sample of a series: what can be known is there with 0 from the start.
        for result in ("ok", "failed", "gone"):
            self._reconciles.labels(result)
        for result in ("answered", "none", "unknown", "failed"):
            self._rehearsals.labels(result)
        for source, asked in (*product(("prometheus", "scrape"), ("traffic", "series")), ("agent", "load")):
            self._unknown.labels(source, asked)

    def reconcile(self, result: str, seconds: float) -> None:
        """Count a reconcile: `ok`, `failed` or `gone`."""
        self._reconciles.labels(result).inc()
        self._reconcile_seconds.observe(seconds)

    def action(self, action: str, reason: str) -> None:
        """Count an action that was carried out."""
        self._actions.labels(action, reason).inc()

    def api_call(self, verb: str, kind: str, result: str, seconds: float) -> None:
        """Count a call to the API server."""
        self._api_calls.labels(verb, kind, result).inc()
        self._api_seconds.labels(verb).observe(seconds)

    def clusters(self, count: int) -> None:
        """Say how many clusters are known."""
        self._clusters.set(count)

    def calm_look(self, seconds: float) -> None:
        """Say how often calm clusters are looked at."""
        self._calm_look.set(seconds)

    def leads(self, *, leads: bool) -> None:
        """Say whether this process acts."""
        self._leader.set(int(leads))

    def decision(self, mode: str, reason: str) -> None:
        """Count a plan that changed something."""
        self._decisions.labels(mode, reason).inc()

    def plan(self, seconds: float) -> None:
        """Count a plan by its time."""
        self._plan_seconds.observe(seconds)

    def rehearsal(self, result: str, plays: int = 0, requests: int = 0) -> None:
        """Count a rehearsal (`answered`, `none`, `unknown` or `failed`) and what was played for it."""
        self._rehearsals.labels(result).inc()
        self._plays.inc(plays)
        self._played_requests.inc(requests)

    def rehearsal_waited(self, seconds: float) -> None:
        """Note the time from a question to its answer."""
        self._longest_wait_seconds = max(self._longest_wait_seconds, seconds)
        self._rehearsal_wait_seconds.set(self._longest_wait_seconds)

    def forecast_error(self, namespace: str, cluster: str, method: str, error: float | None) -> None:
        """Say how far off the forecast was lately; None takes the figure away."""
        self._forecast_error.remove_by_labels({"namespace": namespace, "cluster": cluster})
        if error is not None:
            self._forecast_error.labels(namespace, cluster, method).set(error)

    def forecast_fallback(self, method: str, count: int) -> None:
        """Count fits that failed or took too long."""
        self._forecast_fallbacks.labels(method).inc(count)

    def telemetry_unknown(self, source: str, asked: str, count: int = 1) -> None:
        """Count questions that a source could not answer."""
        self._unknown.labels(source, asked).inc(count)

    def measurement_dropped(self, figure: str) -> None:
        """Count a figure that was not a number."""
        self._nonsense.labels(figure).inc()

    def forget(self, namespace: str, cluster: str) -> None:
        """Take away what is said about a cluster."""
        self._forecast_error.remove_by_labels({"namespace": namespace, "cluster": cluster})

    def page(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)
