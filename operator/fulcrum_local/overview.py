"""What `fulcrum status` shows, read from the API server and from this machine."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.api.names import (
    API_VERSION,
    COMPONENT_WORKER,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_POOL,
    LABEL_ROLE,
    PLURAL,
)
from fulcrum.kube import Api, ApiError
from fulcrum.kube.readiness import condition, is_true, labels, restarts, trouble
from fulcrum_local.home import Home
from fulcrum_local.kubelet.processes import Identity
from fulcrum_local.launch import dashboard_url, members

Json = dict[str, Any]


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One InferenceCluster."""

    namespace: str
    name: str
    available: bool
    reason: str
    message: str
    ratio: str
    endpoint: str


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One Pod."""

    namespace: str
    name: str
    cluster: str
    pool: str
    role: str
    phase: str
    ready: bool
    restarts: int
    address: str
    age_seconds: float
    trouble: str | None


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One process of local mode itself."""

    name: str
    pid: int
    memory_bytes: int
    age_seconds: float


class Overview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything at one moment."""

    running: bool
    home: str
    kubeconfig: str
    clusters: list[ClusterRow]
    workers: list[WorkerRow]
    others: list[WorkerRow]
    """Pods that are no workers: operator, gateways, the user's own."""
    processes: list[ProcessRow]
    dashboard: str | None = None
    """URL of the page about all clusters."""


async def overview(home: Home, api: Api | None) -> Overview:
    """Read it; with no API server only what this machine knows. Errors: ApiError, Unreachable."""
    clusters: list[Json] = []
    pods: list[Json] = []
    if api is not None:
        try:
            clusters = (await api.get(f"/apis/{API_VERSION}/{PLURAL}")).get("items") or []
        except ApiError as error:
            if error.code != 404:  # before the CRD is there
                raise
        pods = (await api.get("/api/v1/pods")).get("items") or []
    workers = [pod for pod in pods if labels(pod).get(LABEL_COMPONENT) == COMPONENT_WORKER]
    return Overview(
        running=api is not None,
        home=str(home.root),
        kubeconfig=str(home.kubeconfig),
        clusters=[_cluster(item) for item in clusters],
        workers=[_pod(pod) for pod in workers],
        others=[_pod(pod) for pod in pods if pod not in workers],
        processes=[_process(name, identity) for name, identity in members(home).items()],
        dashboard=dashboard_url(home) if api is not None else None,
    )


def _cluster(item: Json) -> ClusterRow:
    status = item.get("status") or {}
    found = condition(item, "Degraded") if is_true(item, "Degraded") else condition(item, "Available")
    return ClusterRow(
        namespace=item["metadata"]["namespace"],
        name=item["metadata"]["name"],
        available=is_true(item, "Available"),
        reason=(found or {}).get("reason", ""),
        message=(found or {}).get("message", ""),
        ratio=str(status.get("ratio") or ""),
        endpoint=str(status.get("endpoint") or ""),
    )


def _pod(pod: Json) -> WorkerRow:
    status = pod.get("status") or {}
    marks = labels(pod)
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return WorkerRow(
        namespace=pod["metadata"]["namespace"],
        name=pod["metadata"]["name"],
        cluster=marks.get(LABEL_CLUSTER, ""),
        pool=marks.get(LABEL_POOL, ""),
        role=marks.get(LABEL_ROLE, ""),
        phase=phase,
        ready=is_true(pod, "Ready"),
        restarts=restarts(pod),
        address=status.get("podIP", ""),
        age_seconds=_age_seconds(pod["metadata"].get("creationTimestamp")),
        trouble=trouble(pod),
    )


def _age_seconds(stamp: str | None) -> float:
    if not stamp:
        return 0.0
    return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(stamp)).total_seconds()


def _process(name: str, identity: Identity) -> ProcessRow:
    uptime_seconds = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    try:
        resident_pages = int(Path(f"/proc/{identity.pid}/statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:
        resident_pages = 0
    return ProcessRow(
        name=name,
        pid=identity.pid,
        memory_bytes=resident_pages * os.sysconf("SC_PAGE_SIZE"),
        age_seconds=uptime_seconds - identity.ticks / os.sysconf("SC_CLK_TCK"),
    )
