"""Workers on several nodes: what is seen of each group of Pods, as the one Pod that the decision is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import cast

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
from fulcrum.api.worker import EXIT_DEVICE_FAILED
from fulcrum.controller.children import Manifest
from fulcrum.controller.gang_schedulers import groups
from fulcrum.decide import Refusal


def worker_pods(pods: Iterable[Manifest], groups: Iterable[Manifest]) -> Iterator[Manifest]:
    """Yield one Pod for each worker: its own, or of a group its leader as what the LeaderWorkerSet makes of it.

    A group whose leader is not there (yet) counts as a Pod that is pending: it has its place and its GPUs. Pods whose
    LeaderWorkerSet is gone go, too, and keep both until the last of them has ended. What keeps a follower from being
    scheduled keeps the worker from starting.
    """
    leaders: dict[str, Manifest] = {}
    followers: dict[str, list[Manifest]] = defaultdict(list)
    for pod in pods:
        if (followed := _group_of(pod, COMPONENT_FOLLOWER)) is not None:
            followers[followed].append(pod)
        elif (led := _group_of(pod, COMPONENT_WORKER)) is not None:
            leaders[led] = pod
        elif _label(pod, LABEL_COMPONENT) == COMPONENT_WORKER:
            yield pod
    sets = {group["metadata"]["name"]: group for group in groups}
    for name, group in sets.items():
        yield _with_followers(_of_set(group, leaders.get(name)), followers.get(name, []))
    for name in (leaders.keys() | followers.keys()) - sets.keys():
        left = leaders.get(name) or followers[name][0]
        # As what an earlier InferenceCluster left: on its way out, and in its place until then.
        gone = {"kind": KIND, "name": left["metadata"]["labels"][LABEL_CLUSTER], "uid": ""}
        yield {**left, "metadata": {**left["metadata"], "name": leader_name(name), "ownerReferences": [gone]}}


def followers_of(pods: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the Pods that have only a part of a worker's GPUs."""
    return tuple(pod for pod in pods if _group_of(pod, COMPONENT_FOLLOWER) is not None)


def with_leaders(
    lost: frozenset[str], observed_pods: Iterable[Manifest], followers: Iterable[Manifest]
) -> frozenset[str]:
    """Return the uids of lost Pods, and those of workers that lost a follower: without it they cannot go on."""
    groups = {_group_of(pod, COMPONENT_FOLLOWER) for pod in followers if pod["metadata"]["uid"] in lost}
    cut = {pod["metadata"]["uid"] for pod in observed_pods if groups and _label(pod, LABEL_GROUP) in groups}
    return lost | cut


def _group_of(pod: Manifest, component: str) -> str | None:
    return _label(pod, LABEL_GROUP) if _label(pod, LABEL_COMPONENT) == component else None


def _label(pod: Manifest, name: str) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(name)


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
        if (lost := _failed_device(follower)) is not None:
            # Without its GPU the group cannot go on: its leader counts as what failed, on the follower's node.
            spec = {**(leader.get("spec") or {}), "nodeName": (follower.get("spec") or {}).get("nodeName")}
            return {**leader, "spec": spec, "status": {**(leader.get("status") or {}), "containerStatuses": [lost]}}
        conditions = (follower.get("status") or {}).get("conditions") or []
        waiting = [c for c in conditions if c.get("type") == "PodScheduled" and c.get("status") == "False"]
        if waiting:
            status = leader.get("status") or {}
            others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
            return {**leader, "status": {**status, "conditions": [*others, *waiting]}}
    return leader


def _failed_device(pod: Manifest) -> Manifest | None:
    """Return the status of a container that ended because a GPU failed; None where none did."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        for state in ("state", "lastState"):
            ended = (container.get(state) or {}).get("terminated") or {}
            if ended.get("exitCode") == EXIT_DEVICE_FAILED:
                return cast("Manifest", container)
    return None


def groups_missing(spec: InferenceClusterSpec) -> dict[str, Refusal]:
    """Return why no worker of a pool on several nodes can be made, where LeaderWorkerSets cannot be read."""
    message = (
        "a worker is a LeaderWorkerSet there, and the API server has no such kind, or the operator no right to it: "
        "install the LeaderWorkerSet controller (leaderworkerset.x-k8s.io/v1) and the operator's roles of this "
        "release, or set gpu.perNode so that a worker fits on one node."
    )
    refusal = Refusal(message=message, reason=Reason.LEADER_WORKER_SET_MISSING)
    return {pool.name: refusal for pool in groups(spec)}
