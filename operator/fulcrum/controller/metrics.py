"""What the operator says about itself, in Prometheus terms."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
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
        self._leader = Gauge(
            "fulcrum_operator_leader", "1 while this process acts, 0 while another may.", registry=self._registry
        )

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

    def leads(self, *, leads: bool) -> None:
        """Say whether this process acts."""
        self._leader.set(int(leads))

    def page(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)
