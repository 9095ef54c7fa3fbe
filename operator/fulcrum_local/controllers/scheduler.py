"""The scheduler: binds Pods to nodes, or says why it cannot."""

from __future__ import annotations

import logging

from fulcrum_local.controllers import fitting, times
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.pods import condition, is_active
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import EVENTS, NODES, PODS, Json, Key, key_of

logger = logging.getLogger(__name__)
_NAME = "default-scheduler"


class Scheduler:
    """Binds every Pod that names no node and this scheduler."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows Pods and nodes."""
        self._cluster = cluster
        self._queue = WorkQueue[Key]("scheduler")
        self._assumed: dict[str, str] = {}
        self.pods, self.nodes = cluster.informer(PODS), cluster.informer(NODES)
        self.informers = (self.pods, self.nodes)

    async def run(self) -> None:
        """Work until cancelled."""
        self.pods.subscribe(self._note_pod)
        self.nodes.subscribe(self._note_node)
        await self._queue.run(self._reconcile)

    def _note_pod(self, old: Json | None, new: Json | None) -> None:
        if new is not None and _is_waiting(new):
            self._queue.add(key_of(new))
        elif new is None or not is_active(new):
            self._wake_waiting()  # what it used is free
        if new is None and old is not None:
            self._assumed.pop(old["metadata"]["uid"], None)

    def _note_node(self, old: Json | None, new: Json | None) -> None:
        if old is None or new is None or _what_matters(old) != _what_matters(new):
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        for pod in self.pods:
            if _is_waiting(pod):
                self._queue.add(key_of(pod))

    async def _reconcile(self, key: Key) -> float | None:
        pod = self.pods.get(key)
        if pod is None or not _is_waiting(pod) or pod["metadata"]["uid"] in self._assumed:
            return None
        node, problem = fitting.chosen_node(pod, self.nodes, [self._with_node(each) for each in self.pods])
        if problem:
            await self._report(pod, problem)
            return None
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key[1], "namespace": key[0]},
            "target": target,
        }
        await self._cluster.post(PODS, key, "binding", body)
        self._assumed[pod["metadata"]["uid"]] = node
        logger.info("pod_bound", extra={"pod": key[1], "node": node})
        return None

    def _with_node(self, pod: Json) -> Json:
        """The Pod with the node that it was just bound to, which the watch has not told of yet."""
        node = self._assumed.get(pod["metadata"]["uid"])
        return pod if node is None else {**pod, "spec": {**pod["spec"], "nodeName": node}}

    async def _report(self, pod: Json, problem: str) -> None:
        before = condition(pod, "PodScheduled")
        wanted = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": problem}
        if before is not None and wanted.items() <= before.items():
            return
        now = times.text(times.now())
        same = before is not None and before["status"] == "False"
        since = before["lastTransitionTime"] if before is not None and same else now
        others = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] != "PodScheduled"]
        conditions = [*others, {**wanted, "lastProbeTime": None, "lastTransitionTime": since}]
        await self._cluster.patch_status(PODS, pod, {"conditions": conditions})
        logger.info("pod_unschedulable", extra={"pod": pod["metadata"]["name"], "problem": problem})
        await self._cluster.create(EVENTS, _event(pod, problem, now))


def _is_waiting(pod: Json) -> bool:
    spec = pod["spec"]
    mine = spec.get("schedulerName", _NAME) == _NAME
    return mine and not spec.get("nodeName") and not spec.get("schedulingGates") and is_active(pod)


def _what_matters(node: Json) -> Json:
    """The part of a node that decides what fits; heartbeats change the rest all the time."""
    ready = condition(node, "Ready")
    allocatable = (node.get("status") or {}).get("allocatable")
    return {
        "labels": node["metadata"].get("labels"),
        "spec": node["spec"],
        "allocatable": allocatable,
        "ready": ready and ready["status"],
    }


def _event(pod: Json, problem: str, now: str) -> Json:
    namespace, name = key_of(pod)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]}
    return {
        "metadata": {"generateName": f"{name}.", "namespace": namespace},
        "involvedObject": reference,
        "reason": "FailedScheduling",
        "message": problem,
        "type": "Warning",
        "source": {"component": _NAME},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": _NAME,
        "reportingInstance": _NAME,
    }
