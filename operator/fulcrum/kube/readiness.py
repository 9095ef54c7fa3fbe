"""What an applied file waits for, and how far it is. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fulcrum.api.names import API_VERSION, KIND, LABEL_CLUSTER, LABEL_ROLE, PLURAL

Json = dict[str, Any]

_PATHS: Final = {
    (API_VERSION, KIND): (f"/apis/{API_VERSION}", PLURAL, "Available"),
    ("apps/v1", "Deployment"): ("/apis/apps/v1", "deployments", "Available"),
    ("v1", "Pod"): ("/api/v1", "pods", "Ready"),
}
"""(apiVersion, kind) -> (API path, plural, the condition that says it is there)"""
_BAD_WAITING: Final = frozenset({"CrashLoopBackOff", "CreateContainerConfigError", "ErrImageNeverPull"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """One object that is waited for."""

    kind: str
    namespace: str
    name: str
    path: str
    condition: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def awaited(documents: list[Json]) -> list[Awaited]:
    """Objects of a file that become ready; the others are there once they are applied."""
    found = []
    for item in documents:
        known = _PATHS.get((item.get("apiVersion", ""), item.get("kind", "")))
        metadata = item.get("metadata") or {}
        if known is None or not metadata.get("name"):
            continue
        base, plural, condition = known
        namespace = metadata.get("namespace") or "default"
        found.append(
            Awaited(
                kind=item["kind"],
                namespace=namespace,
                name=metadata["name"],
                path=f"{base}/namespaces/{namespace}/{plural}/{metadata['name']}",
                condition=condition,
            )
        )
    return found


def condition(item: Json, kind: str) -> Json | None:
    """A condition of an object's status, if it is there and about the present generation."""
    for entry in (item.get("status") or {}).get("conditions") or []:
        if entry["type"] == kind:
            about = entry.get("observedGeneration")
            stale = about is not None and about < item["metadata"].get("generation", 0)
            return None if stale else entry
    return None


def is_true(item: Json, kind: str) -> bool:
    """Whether a condition holds for the present generation."""
    found = condition(item, kind)
    return found is not None and found["status"] == "True"


def is_current(item: Json) -> bool:
    """Whether the controller has seen the newest spec (Deployments say so once for the whole status)."""
    observed = (item.get("status") or {}).get("observedGeneration")
    return observed is None or observed >= item["metadata"].get("generation", 0)


def restarts(pod: Json) -> int:
    """Restarts of all containers."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return sum(status.get("restartCount", 0) for status in statuses)


def trouble(pod: Json) -> str | None:
    """Why a Pod does not get on, in one line with the program's own last words; None when nothing is wrong."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        waiting = (status.get("state") or {}).get("waiting") or {}
        ended = (status.get("lastState") or {}).get("terminated") or (status.get("state") or {}).get("terminated") or {}
        if waiting.get("reason") not in _BAD_WAITING:
            continue
        lines = [
            line for line in str(ended.get("message") or waiting.get("message") or "").splitlines() if line.strip()
        ]
        code = f" (exit code {ended['exitCode']})" if "exitCode" in ended else ""
        return f"{pod['metadata']['name']}: {waiting['reason']}{code}: {lines[-1].strip() if lines else 'no output'}"
    return None


def labels(item: Json) -> dict[str, str]:
    """Labels of an object."""
    return dict(item["metadata"].get("labels") or {})


def is_worker_of(pod: Json, cluster: str) -> bool:
    """Whether a Pod is a worker of the InferenceCluster."""
    return labels(pod).get(LABEL_CLUSTER) == cluster and LABEL_ROLE in labels(pod)
