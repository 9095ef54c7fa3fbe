"""From what the API server has told to a `Snapshot`; nothing else is remembered."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from fulcrum.api.attention import AttentionKind
from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.internal_token import ANNOTATION_TOKEN
from fulcrum.api.names import (
    ANNOTATION_ATTENTION,
    ANNOTATION_CONTINUE_ROLLOUT,
    ANNOTATION_KV_DTYPE,
    ANNOTATION_NO_KV,
    ANNOTATION_PAUSED,
    ANNOTATION_RELEASE_IMAGE,
    ANNOTATION_REPLACES,
    ANNOTATION_RESTART,
    ANNOTATION_ROLE_SINCE,
    ANNOTATION_SPEC_HASH,
    COMPONENT_BATCH,
    COMPONENT_PRELOAD,
    GROUP,
    KIND,
    LABEL_COMPONENT,
    LABEL_GROUP,
    LABEL_POOL,
    LABEL_ROLE,
    Role,
    batch_name,
    gateway_name,
    role_epoch,
    worker_name,
)
from fulcrum.api.ports import ports_of
from fulcrum.api.types import InferenceCluster
from fulcrum.controller.batch_pod import batch_problem
from fulcrum.controller.caches import Caches
from fulcrum.controller.children import Manifest
from fulcrum.controller.children.owner import GATEWAY
from fulcrum.controller.children.worker_pod import CONTAINER as WORKER_CONTAINER
from fulcrum.controller.gateway_state import gateway_state
from fulcrum.controller.groups import followers_of, worker_pods
from fulcrum.controller.kube import DEPLOYMENT, INFERENCE_CLUSTER, INFERENCE_SCALE, LEADER_WORKER_SET, SERVICE
from fulcrum.decide import ObservedWorker, Snapshot, Termination, WorkerPhase

logger = logging.getLogger(__name__)

ANNOTATION_DRAINING_SINCE: Final = f"{GROUP}/draining-since"
ANNOTATION_DRAINING_FROM: Final = f"{GROUP}/draining-from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One cluster as the API server has it; None is absent."""

    cluster: Manifest
    pods: tuple[Manifest, ...]
    """One for each worker; see `groups.worker_pods`."""
    deployment: Manifest | None
    service: Manifest | None
    gateways: tuple[Manifest, ...] = ()
    """Pods of gateways."""
    batch: Manifest | None = None
    """Deployment of the batch Pod."""
    batch_pods: tuple[Manifest, ...] = ()
    preload_pods: tuple[Manifest, ...] = ()
    scales: tuple[Manifest, ...] = ()
    """InferenceScales."""
    groups: tuple[Manifest, ...] = ()
    """LeaderWorkerSets: of workers on several nodes."""
    followers: tuple[Manifest, ...] = ()
    """Pods of such workers beside those in `pods`."""


def observe(caches: Caches, namespace: str, name: str) -> Observed | None:
    """Return everything that a decision needs; None when the InferenceCluster is gone.

    Errors: Unreachable when the API server has not told of changes for too long.
    """
    caches.check(namespace)
    cluster = caches.get(INFERENCE_CLUSTER, namespace, name)
    if cluster is None:
        return None
    pods, groups = caches.pods((namespace, name)), caches.of_cluster(LEADER_WORKER_SET, (namespace, name))
    return Observed(
        cluster=cluster,
        pods=tuple(worker_pods(pods, groups)),
        deployment=caches.get(DEPLOYMENT, namespace, gateway_name(name)),
        service=caches.get(SERVICE, namespace, gateway_name(name)),
        gateways=_of_component(pods, GATEWAY),
        batch=caches.get(DEPLOYMENT, namespace, batch_name(name)),
        batch_pods=_of_component(pods, COMPONENT_BATCH),
        preload_pods=_of_component(pods, COMPONENT_PRELOAD),
        scales=tuple(caches.of_cluster(INFERENCE_SCALE, (namespace, name))),
        groups=tuple(groups),
        followers=followers_of(pods),
    )


def _of_component(pods: list[Manifest], component: str) -> tuple[Manifest, ...]:
    return tuple(pod for pod in pods if (pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == component)


def gateway_addresses(observed: Observed) -> dict[str, str]:
    """Return the address of each ready gateway, by the name of its Pod."""
    return _ready_addresses(observed.gateways)


def batch_address(observed: Observed) -> str | None:
    """Return the address of the batch Pod; None while it is not ready."""
    return next(iter(_ready_addresses(observed.batch_pods).values()), None)


def _ready_addresses(pods: Iterable[Manifest]) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: status["podIP"]
        for pod in pods
        if (status := pod.get("status") or {}).get("podIP")
        and any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        and "deletionTimestamp" not in pod["metadata"]
    }


def running_images(observed: Observed) -> dict[tuple[str, str], str]:
    """Return the image of the workers of each (pool, revision)."""
    images = {}
    for pod in observed.pods:
        metadata = pod["metadata"]
        key = (
            metadata["labels"].get(LABEL_POOL, ""),
            (metadata.get("annotations") or {}).get(ANNOTATION_SPEC_HASH, ""),
        )
        for container in pod["spec"]["containers"]:
            if container["name"] == WORKER_CONTAINER:
                images[key] = container.get("image", "")
    return images


def make_snapshot(
    observed: Observed,
    cluster: InferenceCluster,
    acknowledged: frozenset[tuple[str, int, int]],
    *,
    lost: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
    token_fingerprint: str | None = None,
) -> Snapshot:
    """Return the snapshot of what was observed.

    `acknowledged` are the (uid, restarts, epoch) of agents that know their role, `lost` the uids of Pods whose node is
    gone, `taken` names of Pods that are not of this cluster. Workers that ask for another token than the one with
    `token_fingerprint` are of no revision, so that they are replaced. None: the token is not known; empty: workers are
    to ask for none.
    """
    workers = []
    foreign = {pod["metadata"]["name"] for pod in observed.pods if not _is_ours(pod["metadata"], cluster)}
    for pod in observed.pods:
        if pod["metadata"]["name"] in foreign:
            continue
        worker = read_worker(pod, cluster, acknowledged, lost)
        if worker is None:
            logger.warning("pod_ignored pod=%s reason=labels_do_not_name_a_worker", pod["metadata"]["name"])
        else:
            workers.append(worker if _asks_for(pod, token_fingerprint) else replace(worker, spec_hash=""))
    return Snapshot(
        name=cluster.metadata.name,
        generation=cluster.metadata.generation,
        spec=cluster.spec,
        workers=tuple(sorted(workers, key=lambda w: (w.pool, w.ordinal))),
        gateway=gateway_state(observed.deployment, observed.service, observed.gateways),
        batch_problem=batch_problem(cluster, observed.batch, observed.batch_pods),
        status=cluster.status,
        paused=is_paused(cluster),
        continues_rollout=(
            cluster.metadata.annotations.get(ANNOTATION_CONTINUE_ROLLOUT) == str(cluster.metadata.generation)
        ),
        # A set that ends keeps its name until then; its worker goes by the name of its Pod.
        taken_names=taken | foreign | {group["metadata"]["name"] for group in observed.groups},
        asked=asked_replicas(observed, cluster.metadata.uid),
    )


def asked_replicas(observed: Observed, cluster_uid: str) -> dict[tuple[str, Role], int]:
    """Return what the cluster's own InferenceScales ask for, by pool and role."""
    return {
        (scale["spec"]["pool"], Role(scale["spec"]["role"])): int(scale["spec"].get("replicas", 1))
        for scale in observed.scales
        if is_owned(scale["metadata"], cluster_uid) and "deletionTimestamp" not in scale["metadata"]
    }


def is_paused(cluster: InferenceCluster) -> bool:
    """Report whether nothing of the cluster is to be changed."""
    return cluster.metadata.annotations.get(ANNOTATION_PAUSED, "false").lower() != "false"


def _asks_for(pod: Manifest, token_fingerprint: str | None) -> bool:
    """Whether a worker can be spoken to with the token; one without the annotation asks for none."""
    return token_fingerprint is None or _token(pod) in (None, token_fingerprint)


def _token(pod: Manifest) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_TOKEN)


def gateways_send_token(observed: Observed) -> bool:
    """Report whether no gateway of the release before takes requests: a new worker would refuse what it sends."""
    return all(_token(pod) is not None for pod in observed.gateways if "deletionTimestamp" not in pod["metadata"])


def read_worker(
    pod: Manifest,
    cluster: InferenceCluster,
    acknowledged: frozenset[tuple[str, int, int]],
    lost: frozenset[str] = frozenset(),
) -> ObservedWorker | None:
    """Return the worker that a Pod is; None when its name and labels do not make one."""
    metadata, of_pod, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    pool, name, uid = labels.get(LABEL_POOL, ""), metadata["name"], metadata["uid"]
    place = labels.get(LABEL_GROUP, name)
    suffix = place.rpartition("-")[2]
    ordinal = int(suffix) if suffix.isdecimal() and suffix.isascii() else -1
    if ordinal < 0 or place != worker_name(cluster.metadata.name, pool, ordinal):
        return None
    container: dict[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == WORKER_CONTAINER), {}
    )
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    scheduled, readiness = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    ready = readiness.get("status") == "True"
    restarts = int(container.get("restartCount") or 0)
    epoch = role_epoch(annotations)
    phase = status.get("phase")
    waiting = (container.get("state") or {}).get("waiting") or {}
    return ObservedWorker(
        name=name,
        uid=uid,
        pool=pool,
        ordinal=ordinal,
        role=_role(labels.get(LABEL_ROLE)) or Role.DRAINING,
        role_epoch=epoch,
        spec_hash=annotations.get(ANNOTATION_SPEC_HASH, ""),
        phase=WorkerPhase(phase) if phase in set(WorkerPhase) else WorkerPhase.PENDING,
        ready=ready,
        started=bool(container.get("started")),
        deleting="deletionTimestamp" in metadata or uid in lost or not is_owned(metadata, cluster.metadata.uid),
        lost=uid in lost,
        node=of_pod.get("nodeName"),
        replaces=annotations.get(ANNOTATION_REPLACES),
        release_image=annotations.get(ANNOTATION_RELEASE_IMAGE),
        kv_dtype=_kv_dtype(annotations.get(ANNOTATION_KV_DTYPE)),
        attention=_attention(annotations.get(ANNOTATION_ATTENTION)),
        exchanges_no_kv=ANNOTATION_NO_KV in annotations,
        pod_ip=status.get("podIP") or None,
        ports=ports_of(annotations),
        host_network=bool(of_pod.get("hostNetwork")),
        restarts=restarts,
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message") or "",
        termination=_termination(container),
        unschedulable=(
            scheduled.get("message") or "no reason given"
            if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
            else None
        ),
        role_since=_time(annotations.get(ANNOTATION_ROLE_SINCE)),
        created=_time(metadata.get("creationTimestamp")),
        ready_since=_time(readiness.get("lastTransitionTime")) if ready else None,
        unready_since=None if ready else _time(readiness.get("lastTransitionTime")),
        draining_since=_time(annotations.get(ANNOTATION_DRAINING_SINCE)),
        draining_from=_role(annotations.get(ANNOTATION_DRAINING_FROM)),
        restart_asked=ANNOTATION_RESTART in annotations,
        role_acknowledged=(uid, restarts, epoch) in acknowledged,
    )


def is_owned(metadata: Manifest, owner_uid: str) -> bool:
    """Report whether an object has an owner reference to the cluster with this uid: only such objects are ours."""
    return any(owner.get("uid") == owner_uid for owner in metadata.get("ownerReferences") or [])


def is_of_namesake(metadata: Manifest, name: str, kind: str = KIND) -> bool:
    """Report whether an object belongs to an owner of this name (and kind): ours, or an earlier one.

    What an earlier one left is on its way out, even before the garbage collector says so.
    """
    owners = metadata.get("ownerReferences") or []
    return any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)


def _is_ours(metadata: Manifest, cluster: InferenceCluster) -> bool:
    return is_owned(metadata, cluster.metadata.uid) or is_of_namesake(metadata, cluster.metadata.name)


def _termination(container: Manifest) -> Termination | None:
    for state in (container.get("state"), container.get("lastState")):
        ended = (state or {}).get("terminated")
        if ended:
            return Termination(
                exit_code=int(ended.get("exitCode") or 0),
                message=ended.get("message") or "",
                at=_time(ended.get("finishedAt")),
            )
    return None


def _role(text: str | None) -> Role | None:
    return Role(text) if text in set(Role) else None


def _kv_dtype(text: str | None) -> KvCacheDtype:
    return KvCacheDtype(text) if text in set(KvCacheDtype) else KvCacheDtype.AUTO


def _attention(text: str | None) -> AttentionKind | None:
    return AttentionKind(text) if text is not None and text in set(AttentionKind) else None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
