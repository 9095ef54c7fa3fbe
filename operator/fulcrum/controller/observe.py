"""From what the API server lists to a `Snapshot`. The truth is read anew each time; nothing is remembered."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fulcrum.api.names import (
    ANNOTATION_PAUSED,
    ANNOTATION_ROLE_EPOCH,
    ANNOTATION_ROLE_SINCE,
    ANNOTATION_SPEC_HASH,
    GROUP,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_POOL,
    LABEL_ROLE,
    Role,
    gateway_name,
    worker_name,
)
from fulcrum.api.types import InferenceCluster
from fulcrum.balance import GatewayState, Snapshot, Termination, Worker, WorkerPhase
from fulcrum.controller.children import Manifest
from fulcrum.controller.children.owner import GATEWAY, WORKER
from fulcrum.controller.kube import DEPLOYMENT, INFERENCE_CLUSTER, POD, SERVICE, Kube

logger = logging.getLogger(__name__)

ANNOTATION_DRAINING_SINCE: Final = f"{GROUP}/draining-since"
ANNOTATION_DRAINING_FROM: Final = f"{GROUP}/draining-from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One cluster as the API server has it; None is absent."""

    cluster: Manifest
    pods: tuple[Manifest, ...]
    """Of workers."""
    deployment: Manifest | None
    service: Manifest | None
    gateways: tuple[Manifest, ...] = ()
    """Pods of gateways."""


async def observe(kube: Kube, namespace: str, name: str) -> Observed | None:
    """Read everything that a decision needs, at once; None when the InferenceCluster is gone."""
    cluster, pods, deployment, service = await asyncio.gather(
        kube.get(INFERENCE_CLUSTER, namespace, name),
        kube.list(POD, namespace, {LABEL_CLUSTER: name}),
        kube.get(DEPLOYMENT, namespace, gateway_name(name)),
        kube.get(SERVICE, namespace, gateway_name(name)),
    )
    if cluster is None:
        return None
    return Observed(
        cluster=cluster,
        pods=_of_component(pods, WORKER),
        deployment=deployment,
        service=service,
        gateways=_of_component(pods, GATEWAY),
    )


def _of_component(pods: list[Manifest], component: str) -> tuple[Manifest, ...]:
    return tuple(pod for pod in pods if (pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == component)


def gateway_addresses(observed: Observed) -> dict[str, str]:
    """Return the address of each ready gateway, by the name of its Pod."""
    return {
        pod["metadata"]["name"]: status["podIP"]
        for pod in observed.gateways
        if (status := pod.get("status") or {}).get("podIP")
        and any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        and "deletionTimestamp" not in pod["metadata"]
    }


def make_snapshot(observed: Observed, cluster: InferenceCluster, told: frozenset[tuple[str, int, int]]) -> Snapshot:
    """Return the snapshot of what was observed; `told` says which (uid, restarts, epoch) an agent is known to know."""
    workers = []
    for pod in observed.pods:
        worker = read_worker(pod, cluster, told)
        if worker is None:
            logger.warning("pod_ignored pod=%s reason=labels_do_not_name_a_worker", pod["metadata"]["name"])
        else:
            workers.append(worker)
    return Snapshot(
        name=cluster.metadata.name,
        generation=cluster.metadata.generation,
        spec=cluster.spec,
        workers=tuple(sorted(workers, key=lambda w: (w.pool, w.ordinal))),
        gateway=_gateway(observed),
        status=cluster.status,
        paused=ANNOTATION_PAUSED in cluster.metadata.annotations
        and cluster.metadata.annotations[ANNOTATION_PAUSED].lower() != "false",
    )


def read_worker(pod: Manifest, cluster: InferenceCluster, told: frozenset[tuple[str, int, int]]) -> Worker | None:
    """Return the worker that a Pod is; None when its name and labels do not make one."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    pool, name, uid = labels.get(LABEL_POOL, ""), metadata["name"], metadata["uid"]
    suffix = name.rpartition("-")[2]
    ordinal = int(suffix) if suffix.isdecimal() and suffix.isascii() else -1
    if ordinal < 0 or name != worker_name(cluster.metadata.name, pool, ordinal):
        return None
    container: dict[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == "worker"), {}
    )
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    scheduled, readiness = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    ready = readiness.get("status") == "True"
    restarts = int(container.get("restartCount") or 0)
    epoch = _integer(annotations.get(ANNOTATION_ROLE_EPOCH))
    phase = status.get("phase")
    return Worker(
        name=name,
        uid=uid,
        pool=pool,
        ordinal=ordinal,
        role=_role(labels.get(LABEL_ROLE)) or Role.DRAINING,
        role_epoch=epoch,
        spec_hash=annotations.get(ANNOTATION_SPEC_HASH, ""),
        phase=WorkerPhase(phase) if phase in set(WorkerPhase) else WorkerPhase.PENDING,
        ready=ready,
        deleting="deletionTimestamp" in metadata or not _is_owned(metadata, cluster.metadata.uid),
        pod_ip=status.get("podIP") or None,
        restarts=restarts,
        waiting_reason=((container.get("state") or {}).get("waiting") or {}).get("reason"),
        termination=_termination(container),
        unschedulable=(
            scheduled.get("message") or "no reason given"
            if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
            else None
        ),
        role_since=_time(annotations.get(ANNOTATION_ROLE_SINCE)),
        created=_time(metadata.get("creationTimestamp")),
        ready_since=_time(readiness.get("lastTransitionTime")) if ready else None,
        draining_since=_time(annotations.get(ANNOTATION_DRAINING_SINCE)),
        draining_from=_role(annotations.get(ANNOTATION_DRAINING_FROM)),
        role_told=(uid, restarts, epoch) in told,
    )


def _is_owned(metadata: Manifest, owner_uid: str) -> bool:
    """A Pod of an earlier cluster of the same name is on its way out, even before the garbage collector says so."""
    return any(owner.get("uid") == owner_uid for owner in metadata.get("ownerReferences") or [])


def _termination(container: Manifest) -> Termination | None:
    for state in (container.get("state"), container.get("lastState")):
        ended = (state or {}).get("terminated")
        if ended:
            return Termination(exit_code=int(ended.get("exitCode") or 0), message=ended.get("message") or "")
    return None


def _gateway(observed: Observed) -> GatewayState:
    deployment, service = observed.deployment or {}, observed.service or {}
    address = (service.get("spec") or {}).get("clusterIP")
    return GatewayState(
        desired=int((deployment.get("spec") or {}).get("replicas") or 0),
        ready=int((deployment.get("status") or {}).get("availableReplicas") or 0),
        cluster_ip=address if address not in (None, "", "None") else None,
    )


def _role(text: str | None) -> Role | None:
    return Role(text) if text in set(Role) else None


def _integer(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else 0


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
