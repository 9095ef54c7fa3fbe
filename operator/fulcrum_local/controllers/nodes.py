"""Nodes whose kubelet is silent, and Pods whose node is gone: what the node lifecycle controller and the Pod garbage
collector of a real controller manager do.

Source: https://kubernetes.io/docs/concepts/architecture/nodes/ and .../scheduling-eviction/taint-and-toleration/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from fulcrum.kube import ApiError
from fulcrum_local.controllers import times
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.pods import condition, is_finished, is_ready, is_terminating
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import LEASES, NODES, PODS, Json, Key
from fulcrum_local.controllers.taints import effective_taints, eviction_due

logger = logging.getLogger(__name__)
LEASE_NAMESPACE: Final = "kube-node-lease"
_CONDITIONS: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """How long silence is tolerated, in seconds; the defaults are those of Kubernetes."""

    monitor_grace_seconds: float = 50.0
    """A kubelet that has not renewed its Lease for so long is taken for dead: Ready becomes Unknown."""
    orphan_grace_seconds: float = 40.0
    """Pods of a Node object that is not there are deleted after this time."""


class NodeLifecycle:
    """Marks silent nodes and their Pods, evicts by NoExecute taints, and removes Pods of nodes that are gone."""

    def __init__(self, cluster: Cluster, node_times: NodeTimes | None = None) -> None:
        """Follows nodes, their Leases and Pods."""
        self._cluster = cluster
        self._times = node_times or NodeTimes()
        self._queue = WorkQueue[Key]("node-lifecycle")
        self._heard: dict[str, tuple[Any, float]] = {}
        """Last sign of life of each node and when it was seen, by this process' clock."""
        self._missing: dict[str, float] = {}
        self.nodes, self.leases = cluster.informer(NODES), cluster.informer(LEASES)
        self.pods = cluster.informer(PODS)
        self.informers = (self.nodes, self.leases, self.pods)

    async def run(self) -> None:
        """Work until cancelled."""
        self.nodes.subscribe(self._note_node)
        self.leases.subscribe(self._note_lease)
        self.pods.subscribe(self._note_pod)
        await self._queue.run(self._reconcile)

    def _note_node(self, old: Json | None, new: Json | None) -> None:
        node = new if new is not None else old
        if node is not None:
            self._queue.add(("", node["metadata"]["name"]))

    def _note_lease(self, _old: Json | None, new: Json | None) -> None:
        if new is not None and new["metadata"]["namespace"] == LEASE_NAMESPACE:
            self._queue.add(("", new["metadata"]["name"]))

    def _note_pod(self, _old: Json | None, new: Json | None) -> None:
        name = new["spec"].get("nodeName") if new is not None else None
        if name and (_is_troubled(self.nodes.get(("", name)))):
            self._queue.add(("", name))

    async def _reconcile(self, key: Key) -> float | None:
        name = key[1]
        node = self.nodes.get(key)
        pods = [pod for pod in self.pods if pod["spec"].get("nodeName") == name]
        if node is None:
            self._heard.pop(name, None)
            return await self._collect_orphans(name, pods)
        self._missing.pop(name, None)
        left_seconds = self._seconds_to_silence(node)
        if left_seconds <= 0:
            node = await self._mark_silent(node)
        node = await self._keep_taints(node)
        ready = condition(node, "Ready")
        if ready is not None and ready["status"] != "True":
            await self._mark_unready(pods)
        evicted_in = [await self._evict_or_wait(node, pod) for pod in pods]
        waits = [left_seconds if left_seconds > 0 else None, *evicted_in]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    # A kubelet that is silent.

    def _seconds_to_silence(self, node: Json) -> float:
        """Until the node counts as silent. Its own times are compared with themselves only: clocks differ."""
        name = node["metadata"]["name"]
        lease = self.leases.get((LEASE_NAMESPACE, name)) or {}
        ready = condition(node, "Ready") or {}
        sign = ((lease.get("spec") or {}).get("renewTime"), ready.get("lastHeartbeatTime"))
        now = asyncio.get_running_loop().time()
        heard = self._heard.get(name)
        if heard is None or heard[0] != sign:
            heard = self._heard[name] = (sign, now)
        return heard[1] + self._times.monitor_grace_seconds - now

    async def _mark_silent(self, node: Json) -> Json:
        ready = condition(node, "Ready")
        if ready is not None and ready["status"] == "Unknown":
            return node
        now = times.text(times.now())
        never = ready is None
        verdict = {
            "status": "Unknown",
            "reason": "NodeStatusNeverUpdated" if never else "NodeStatusUnknown",
            "message": "Kubelet never posted node status." if never else "Kubelet stopped posting node status.",
            "lastTransitionTime": now,
        }
        before = (node.get("status") or {}).get("conditions") or ()
        known = {entry["type"]: entry for entry in before}
        marked = [
            {"type": kind, "lastHeartbeatTime": known.get(kind, {}).get("lastHeartbeatTime"), **verdict}
            for kind in _CONDITIONS
        ]
        others = [entry for entry in before if entry["type"] not in _CONDITIONS]
        logger.warning("node_silent", extra={"node": node["metadata"]["name"]})
        return await self._cluster.patch(NODES, node, {"status": {"conditions": [*others, *marked]}}, "status")

    async def _keep_taints(self, node: Json) -> Json:
        present = node["spec"].get("taints") or []
        wanted = effective_taints(node, now=times.text(times.now()))
        if wanted == present:
            return node
        return await self._cluster.patch(NODES, node, {"spec": {"taints": wanted or None}})

    async def _mark_unready(self, pods: Iterable[Json]) -> None:
        """No kubelet says so, and endpoints must not lead to Pods that may be gone."""
        for pod in pods:
            if not is_ready(pod):
                continue
            now = times.text(times.now())
            conditions = [
                {**entry, "status": "False", "lastTransitionTime": now} if entry["type"] == "Ready" else entry
                for entry in pod["status"]["conditions"]
            ]
            await self._cluster.patch_status(PODS, pod, {"conditions": conditions})
            logger.warning("pod_unready", extra={"pod": pod["metadata"]["name"], "node": pod["spec"]["nodeName"]})

    # Pods that must go.

    async def _evict_or_wait(self, node: Json, pod: Json) -> float | None:
        if is_terminating(pod) or is_finished(pod):
            return None
        due_seconds = eviction_due(node, pod, times.now())
        if due_seconds is None or due_seconds > 0:
            return due_seconds
        reason, message = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
        await self._disrupt(pod, reason, message)
        logger.warning("pod_evicted", extra={"pod": pod["metadata"]["name"], "node": node["metadata"]["name"]})
        await self._cluster.delete(PODS, pod)
        return None

    async def _collect_orphans(self, name: str, pods: list[Json]) -> float | None:
        if not pods:
            self._missing.pop(name, None)
            return None
        now = asyncio.get_running_loop().time()
        left_seconds = self._missing.setdefault(name, now) + self._times.orphan_grace_seconds - now
        if left_seconds > 0:
            return left_seconds
        if await self._node_exists(name):  # the copy here is behind
            return self._times.orphan_grace_seconds
        for pod in pods:
            phase = {} if is_finished(pod) else {"phase": "Failed"}
            await self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists", phase)
            logger.warning("pod_collected", extra={"pod": pod["metadata"]["name"], "node": name})
            await self._cluster.delete(PODS, pod, grace_seconds=0)
        return None

    async def _node_exists(self, name: str) -> bool:
        try:
            await self._cluster.get(NODES.path(("", name)))
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    async def _disrupt(self, pod: Json, reason: str, message: str, status: Json | None = None) -> None:
        """Say in the Pod's status what ends it, before it is ended."""
        others = (pod.get("status") or {}).get("conditions") or ()
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": times.text(times.now()),
        }
        conditions = [*(entry for entry in others if entry["type"] != "DisruptionTarget"), target]
        await self._cluster.patch_status(PODS, pod, {**(status or {}), "conditions": conditions})


def _is_troubled(node: Json | None) -> bool:
    """Whether Pods of the node need a look: it is gone, not ready, or has taints that end Pods."""
    if node is None:
        return True
    ready = condition(node, "Ready")
    no_execute = any(taint["effect"] == "NoExecute" for taint in node["spec"].get("taints") or ())
    return ready is None or ready["status"] != "True" or no_execute
