"""Workers on several nodes: what is seen of each group of Pods, as the one Pod that the decision is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from fulcrum.api.names import (
    COMPONENT_FOLLOWER,
    COMPONENT_WORKER,
    KIND,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_GROUP,
    leader_name,
)
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance import Refusal
from fulcrum.controller.children import Manifest


def worker_pods(pods: Iterable[Manifest], groups: Iterable[Manifest]) -> Iterator[Manifest]:
    """Yield one Pod for each worker: its own, or of a group its leader as what the LeaderWorkerSet makes of it.

    A group whose leader is not there (yet) counts as a Pod that is pending: it has its place and its GPUs. A leader
    whose LeaderWorkerSet is gone goes, too. What keeps a follower from being scheduled keeps the worker from starting.
    """
    leaders: dict[str, Manifest] = {}
    followers: dict[str, list[Manifest]] = defaultdict(list)
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        component, group = labels.get(LABEL_COMPONENT), labels.get(LABEL_GROUP)
        if component == COMPONENT_FOLLOWER and group is not None:
            followers[group].append(pod)
        elif component == COMPONENT_WORKER and group is not None:
            leaders[group] = pod
        elif component == COMPONENT_WORKER:
            yield pod
    sets = {group["metadata"]["name"]: group for group in groups}
    for name, group in sets.items():
        yield _with_followers(_of_set(group, leaders.get(name)), followers[name])
    for name in leaders.keys() - sets.keys():
        metadata = leaders[name]["metadata"]
        # As what an earlier InferenceCluster left: on its way out, and in its place until then.
        gone = {"kind": KIND, "name": metadata["labels"][LABEL_CLUSTER], "uid": ""}
        yield {**leaders[name], "metadata": {**metadata, "ownerReferences": [gone]}}


def _of_set(group: Manifest, leader: Manifest | None) -> Manifest:
    """Return the leader with the owner of its LeaderWorkerSet, which ends it; or what stands for it meanwhile."""
    of_set = group["metadata"]
    if leader is None:
        labels = {**(of_set.get("labels") or {}), LABEL_GROUP: of_set["name"]}
        metadata = {**of_set, "name": leader_name(of_set["name"]), "labels": labels}
        return {"metadata": metadata, "spec": {"containers": []}, "status": {}}
    metadata = {**leader["metadata"], "ownerReferences": of_set.get("ownerReferences") or []}
    if "deletionTimestamp" in of_set:
        metadata["deletionTimestamp"] = of_set["deletionTimestamp"]
    return {**leader, "metadata": metadata}


def _with_followers(leader: Manifest, followers: list[Manifest]) -> Manifest:
    for follower in followers:
        conditions = (follower.get("status") or {}).get("conditions") or []
        waiting = [c for c in conditions if c.get("type") == "PodScheduled" and c.get("status") == "False"]
        if waiting:
            status = leader.get("status") or {}
            others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
            return {**leader, "status": {**status, "conditions": [*others, *waiting]}}
    return leader


def groups_missing(spec: InferenceClusterSpec) -> dict[str, Refusal]:
    """Return why no worker of a pool on several nodes can be made, where LeaderWorkerSets cannot be read."""
    message = (
        "a worker is a LeaderWorkerSet there, and the API server has no such kind, or the operator no right to it: "
        "install the LeaderWorkerSet controller (leaderworkerset.x-k8s.io/v1) and the operator's roles of this "
        "release, or set gpu.perNode so that a worker fits on one node."
    )
    refusal = Refusal(message=message, reason=Reason.LEADER_WORKER_SET_MISSING)
    return {pool.name: refusal for pool in spec.pools if pool.nodes > 1 and pool.workers.max > 0}
