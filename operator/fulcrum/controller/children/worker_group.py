"""The LeaderWorkerSet of a worker on several nodes: its leader is the worker's Pod, and followers have the other GPUs.

Source: the API reference of leaderworkerset.x-k8s.io/v1.
"""

from __future__ import annotations

import copy
from typing import Final

from fulcrum.api.internal_token import ENV_WORKER
from fulcrum.api.names import COMPONENT_FOLLOWER, LABEL_COMPONENT, LABEL_GROUP, LABEL_LLM_D_ROLE, LABEL_ROLE
from fulcrum.api.types import Pool
from fulcrum.controller.children.owner import Manifest
from fulcrum.controller.children.worker_pod import CONTAINER
from fulcrum.controller.kube import LEADER_WORKER_SET

FOLLOWER_COMMAND: Final = ["python3", "-m", "fulcrum_worker.follower"]
_OF_THE_LEADER: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe")


def worker_group(pod: Manifest, pool: Pool) -> Manifest:
    """Return the LeaderWorkerSet whose leader is `pod`, as `worker_pod` makes it for one worker of `pool`.

    One set for each worker: which of them goes is decided here, and a set only gives up its last group. A Pod that
    restarts takes its group along, because the engines on the other nodes cannot go on without it.
    """
    metadata = pod["metadata"]
    leader = {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
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
                "workerTemplate": _follower(pod, pool),
            },
        },
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
