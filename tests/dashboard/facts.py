"""Facts about one cluster, as a source hands them in."""

from __future__ import annotations

from typing import Any

from fulcrum.api.worker import LoadReport
from fulcrum.dashboard import ClusterFacts, Reading

Json = dict[str, Any]


def document(*, name: str = "chat", version: int = 1, **status: Any) -> Json:
    """An InferenceCluster with this status."""
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {
            "model": {"name": "hub/model", "servedName": "model", "credentials": {"secretName": "hf-token"}},
            "slo": {"ttft": "500ms", "tpot": "50ms", "attainment": 0.95},
            "balance": {"mode": "Auto"},
        },
        "status": status,
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    """One condition."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def pod(name: str, role: str = "decode", *, ready: bool = True, **status: Any) -> Json:
    """A worker's Pod."""
    return {
        "metadata": {
            "name": name,
            "labels": {"fulcrum.dev/role": role, "fulcrum.dev/pool": "p"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


def load(running: int | None = 1, waiting: int | None = 0, kv_usage: float | None = 0.5) -> LoadReport:
    """A worker's report."""
    return LoadReport(
        role="decode",  # type: ignore[arg-type]
        role_epoch=0,
        ready=True,
        draining=False,
        running=running,
        waiting=waiting,
        kv_usage=kv_usage,
    )


def event(reason: str, message: str, *, at: str = "2026-01-01T00:00:05Z", uid: str = "uid-chat") -> Json:
    """A Kubernetes Event about the cluster."""
    return {
        "involvedObject": {"name": "chat", "uid": uid},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


class Played:
    """A source that returns what the test puts there."""

    def __init__(self, *clusters: ClusterFacts) -> None:
        self.clusters = list(clusters)
        self.watched: frozenset[str] = frozenset()
        self.error: Exception | None = None

    async def read(self, watched: frozenset[str]) -> Reading:
        self.watched = watched
        if self.error is not None:
            raise self.error
        return Reading(clusters=self.clusters)
