"""`/metrics`: requests as a real server counts them, and by client, so that tests can count the writes of one."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fulcrum_local.apiserver.request import Target

_VERBS: Final = {
    "get": "GET", "list": "LIST", "watch": "WATCH", "create": "POST", "update": "PUT", "patch": "PATCH",
    "delete": "DELETE", "deletecollection": "DELETECOLLECTION",
}  # fmt: skip
_RESOURCE_LABELS: Final = ("verb", "group", "version", "resource", "subresource")
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and code.",
            (*_RESOURCE_LABELS, "scope", "dry_run", "code"),
            registry=self._registry,
        )
        self._client_requests = Counter(
            "fulcrum_apiserver_client_requests",
            "Requests by user and client (the first word of the user agent), verb, resource and code.",
            ("user", "client", *_RESOURCE_LABELS, "code"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "apiserver_request_duration_seconds",
            "Time to answer, watches left out.",
            _RESOURCE_LABELS,
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.watches = Gauge(
            "apiserver_longrunning_requests",
            "Open watches and log streams.",
            ("verb", "group", "version", "resource"),
            registry=self._registry,
        )

    def count(self, target: Target, *, user: str, client: str, code: int, dry_run: bool, apply: bool,
              seconds: float) -> None:  # fmt: skip
        """Count one answered request."""
        verb = "APPLY" if apply else _VERBS.get(target.verb, target.verb.upper())
        labels = (verb, target.group, target.version, target.resource, target.subresource)
        scope = ""
        if target.is_resource:
            scope = "resource" if target.name else "namespace" if target.namespace else "cluster"
        self._requests.labels(*labels, scope, "All" if dry_run else "", str(code)).inc()
        self._client_requests.labels(user, client, *labels, str(code)).inc()
        if verb != "WATCH":
            self._seconds.labels(*labels).observe(seconds)

    def text(self) -> bytes:
        """Exposition in the Prometheus text format."""
        return generate_latest(self._registry)
