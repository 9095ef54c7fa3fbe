"""Workers from their Pods."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from fulcrum.api.attention import AttentionKind
from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.names import (
    ANNOTATION_ATTENTION,
    ANNOTATION_KV_DTYPE,
    ANNOTATION_NO_KV,
    ANNOTATION_RELEASE_IMAGE,
    ANNOTATION_REPLACES,
    ANNOTATION_RESTART,
    ANNOTATION_ROLE_SINCE,
    ANNOTATION_SPEC_HASH,
    GROUP,
    LABEL_GROUP,
    LABEL_POOL,
    LABEL_ROLE,
    Role,
    role_epoch,
    worker_name,
)
from fulcrum.api.ports import ports_of
from fulcrum.api.types import InferenceCluster
from fulcrum.controller.children import Manifest
from fulcrum.controller.children.worker_pod import CONTAINER as WORKER_CONTAINER
from fulcrum.controller.observed import Observed, is_ours, is_owned, token_of
from fulcrum.decide import ObservedWorker, Termination, WorkerPhase

logger = logging.getLogger(__name__)

ANNOTATION_DRAINING_SINCE: Final = f"{GROUP}/draining-since"
ANNOTATION_DRAINING_FROM: Final = f"{GROUP}/draining-from"


def read_workers(
    observed: Observed,
    cluster: InferenceCluster,
    acknowledged: frozenset[tuple[str, int, int]],
    *,
    lost: frozenset[str] = frozenset(),
    token_fingerprint: str | None = None,
) -> tuple[ObservedWorker, ...]:
    """Return the workers of a cluster by pool and ordinal, without loads.

    `acknowledged` are the (uid, restarts, epoch) of agents that know their role, `lost` the uids of Pods whose node is
    gone. Workers that ask for another token than the one with `token_fingerprint` are of no revision, so that they are
    replaced. None: the token is not known; empty: workers are to ask for none.
    """
    workers = []
    for pod in observed.pods:
        if not is_ours(pod["metadata"], cluster):
            continue
        worker = read_worker(pod, cluster, acknowledged, lost)
        if worker is None:
            logger.warning("pod_ignored pod=%s reason=labels_do_not_name_a_worker", pod["metadata"]["name"])
        else:
            workers.append(worker if _asks_for(pod, token_fingerprint) else replace(worker, spec_hash=""))
    return tuple(sorted(workers, key=lambda w: (w.pool, w.ordinal)))


def _asks_for(pod: Manifest, token_fingerprint: str | None) -> bool:
    """Whether a worker can be spoken to with the token; one without the annotation asks for none."""
    return token_fingerprint is None or token_of(pod) in (None, token_fingerprint)


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
    ordinal = _ordinal(labels.get(LABEL_GROUP, name), cluster, pool)
    if ordinal is None:
        return None
    container: dict[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == WORKER_CONTAINER), {}
    )
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    readiness = conditions.get("Ready", {})
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
        unschedulable=_unschedulable(conditions.get("PodScheduled", {})),
        role_since=_time(annotations.get(ANNOTATION_ROLE_SINCE)),
        created=_time(metadata.get("creationTimestamp")),
        ready_since=_time(readiness.get("lastTransitionTime")) if ready else None,
        unready_since=None if ready else _time(readiness.get("lastTransitionTime")),
        draining_since=_time(annotations.get(ANNOTATION_DRAINING_SINCE)),
        draining_from=_role(annotations.get(ANNOTATION_DRAINING_FROM)),
        restart_asked=ANNOTATION_RESTART in annotations,
        role_acknowledged=(uid, restarts, epoch) in acknowledged,
    )


def _ordinal(place: str, cluster: InferenceCluster, pool: str) -> int | None:
    """Return the number of a place of the pool; None when it is none."""
    suffix = place.rpartition("-")[2]
    ordinal = int(suffix) if suffix.isdecimal() and suffix.isascii() else -1
    return ordinal if ordinal >= 0 and place == worker_name(cluster.metadata.name, pool, ordinal) else None


def _unschedulable(scheduled: Manifest) -> str | None:
    """Return the scheduler's message; None while a node is found or may be."""
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return scheduled.get("message") or "no reason given"
    return None


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
