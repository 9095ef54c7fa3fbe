"""The LeaderWorkerSet of a worker on several nodes: its leader is the worker's Pod, and followers have the other GPUs.

Source: the API reference of leaderworkerset.x-k8s.io/v1.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Final

import msgspec

from fulcrum.api.internal_token import ENV_WORKER
from fulcrum.api.names import (
    ANNOTATION_POD_GROUP,
    COMPONENT_FOLLOWER,
    LABEL_COMPONENT,
    LABEL_GROUP,
    LABEL_LLM_D_ROLE,
    LABEL_QUEUE,
    LABEL_ROLE,
)
from fulcrum.api.types import Gang, Pool
from fulcrum.controller.children.owner import Manifest
from fulcrum.controller.children.worker_pod import CONTAINER
from fulcrum.controller.kube import LEADER_WORKER_SET, POD_GROUP

VOLCANO_SCHEDULER: Final = "volcano"
FOLLOWER_COMMAND: Final = ["python3", "-m", "fulcrum_worker.follower"]
_OF_THE_LEADER: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe")


def worker_group(pod: Manifest, pool: Pool, *, gang: Gang = Gang.OFF, queue: str | None = None) -> Manifest:
    """Return the LeaderWorkerSet whose leader is `pod`, as `worker_pod` makes it for one worker of `pool`.

    With Volcano its Pods belong to the PodGroup of `pod_group`; with Kueue the set waits in `queue`.

    One set for each worker: which of them goes is decided here, and a set only gives up its last group. A Pod that
    restarts takes its group along, because the engines on the other nodes cannot go on without it.
    """
    metadata = pod["metadata"]
    leader = {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    follower = _follower(pod, pool)
    if gang is Gang.VOLCANO:
        together = {ANNOTATION_POD_GROUP: pod_group(pod, pool, queue=queue)["metadata"]["name"]}
        metadata = {**metadata, "annotations": {**metadata["annotations"], **together}}
        leader, follower = (_scheduled_together(template, together) for template in (leader, follower))
    elif gang is Gang.KUEUE and queue is not None:
        metadata = {**metadata, "labels": {**metadata["labels"], LABEL_QUEUE: queue}}
    return {
        "apiVersion": LEADER_WORKER_SET.api_version,
        "kind": LEADER_WORKER_SET.kind,
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": pool.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": follower,
            },
        },
    }


def pod_group(pod: Manifest, pool: Pool, *, queue: str | None) -> Manifest:
    """Return the PodGroup by which Volcano places all Pods of a worker at once, or none.

    Its name says what is in it, so that one that an earlier worker left is as good. Source: Volcano, v1beta1.
    """
    metadata = pod["metadata"]
    spec: Manifest = {"minMember": pool.nodes}
    if queue is not None:
        spec["queue"] = queue
    if pool.priority_class_name is not None:
        spec["priorityClassName"] = pool.priority_class_name
    digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:8]
    kept = {key: value for key, value in metadata["labels"].items() if key not in (LABEL_ROLE, LABEL_LLM_D_ROLE)}
    return {
        "apiVersion": POD_GROUP.api_version,
        "kind": POD_GROUP.kind,
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "labels": kept,
            "ownerReferences": metadata["ownerReferences"],
        },
        "spec": spec,
    }


def _scheduled_together(template: Manifest, together: dict[str, str]) -> Manifest:
    """Return the template with Volcano's annotation and scheduler; one that a pool's template names stays."""
    metadata = template["metadata"]
    annotations = {**(metadata.get("annotations") or {}), **together}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"schedulerName": VOLCANO_SCHEDULER, **template["spec"]},
    }


def _follower(pod: Manifest, pool: Pool) -> Manifest:
    """Return the template of the other Pods: the same engine without an API, in no role, near the leader."""
    metadata = pod["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key not in (LABEL_ROLE, LABEL_LLM_D_ROLE)}
    labels[LABEL_COMPONENT] = COMPONENT_FOLLOWER
    spec = copy.deepcopy(pod["spec"])
    for container in spec["containers"]:
        if container["name"] == CONTAINER:
            container["command"] = list(FOLLOWER_COMMAND)
            container["env"] = [entry for entry in container.get("env") or () if entry["name"] != ENV_WORKER]
            for field in _OF_THE_LEADER:
                container.pop(field, None)
    spec.pop("topologySpreadConstraints", None)
    near = {
        "topologyKey": pool.topology.keep_within,
        "labelSelector": {"matchLabels": {LABEL_GROUP: metadata["name"]}},
    }
    preferred = [{"weight": 100, "podAffinityTerm": near}]
    spec["affinity"] = {
        **{kind: asked for kind, asked in (spec.get("affinity") or {}).items() if kind == "nodeAffinity"},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
    }
    return {"metadata": {"labels": labels}, "spec": spec}
