"""ReplicaSets: as many Pods as the spec says."""

from __future__ import annotations

import logging

from fulcrum_local.controllers import times
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.pods import condition, is_active, is_ready, seconds_until_available
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import (
    PODS,
    REPLICA_SETS,
    Json,
    Key,
    controller_of,
    controller_reference,
    key_of,
)
from fulcrum_local.objects.selectors import selector_matches

logger = logging.getLogger(__name__)
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaSets:
    """Creates and deletes Pods, and reports how many there are."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows ReplicaSets and Pods."""
        self._cluster = cluster
        self._queue = WorkQueue[Key]("replicasets")
        self.replica_sets, self.pods = cluster.informer(REPLICA_SETS), cluster.informer(PODS)
        self.informers = (self.replica_sets, self.pods)

    async def run(self) -> None:
        """Work until cancelled."""
        self.replica_sets.subscribe(self._note_replica_set)
        self.pods.subscribe(self._note_pod)
        await self._queue.run(self._reconcile)

    def _note_replica_set(self, old: Json | None, new: Json | None) -> None:
        if new is not None:
            self._queue.add(key_of(new))

    def _note_pod(self, old: Json | None, new: Json | None) -> None:
        for pod in (old, new):
            owner = controller_of(pod) if pod else None
            if pod and owner and owner["kind"] == REPLICA_SETS.kind:
                self._queue.add((pod["metadata"]["namespace"], owner["name"]))
            elif pod is new and pod and not owner:
                self._wake_adopters(pod)

    def _wake_adopters(self, pod: Json) -> None:
        labels = pod["metadata"].get("labels") or {}
        for replica_set in self.replica_sets.in_namespace(pod["metadata"]["namespace"]):
            if labels and selector_matches(replica_set["spec"]["selector"], labels):
                self._queue.add(key_of(replica_set))

    async def _reconcile(self, key: Key) -> float | None:
        replica_set = self.replica_sets.get(key)
        if replica_set is None:
            return None
        pods = await self._claimed(replica_set)
        if "deletionTimestamp" not in replica_set["metadata"]:
            pods = await self._scale(replica_set, pods)
        return await self._report(replica_set, pods)

    async def _claimed(self, replica_set: Json) -> list[Json]:
        """The active Pods that it manages, after it has adopted the unmanaged ones with its labels."""
        claimed = []
        deleting = "deletionTimestamp" in replica_set["metadata"]
        for pod in self.pods.in_namespace(replica_set["metadata"]["namespace"]):
            if not is_active(pod):
                continue
            owner = controller_of(pod)
            matches = selector_matches(replica_set["spec"]["selector"], pod["metadata"].get("labels") or {})
            if owner is not None and owner["uid"] == replica_set["metadata"]["uid"]:
                if matches or deleting:
                    claimed.append(pod)
                else:
                    await self._release(pod, replica_set)
            elif owner is None and matches and not deleting:
                references = pod["metadata"].get("ownerReferences") or []
                adopted = [*references, controller_reference(REPLICA_SETS, replica_set)]
                claimed.append(await self._cluster.patch(PODS, pod, {"metadata": {"ownerReferences": adopted}}))
        return claimed

    async def _release(self, pod: Json, replica_set: Json) -> None:
        """A Pod whose labels were changed by hand leaves the set, which replaces it."""
        uid = replica_set["metadata"]["uid"]
        kept = [reference for reference in pod["metadata"]["ownerReferences"] if reference["uid"] != uid]
        await self._cluster.patch(PODS, pod, {"metadata": {"ownerReferences": kept}})

    async def _scale(self, replica_set: Json, pods: list[Json]) -> list[Json]:
        wanted = replica_set["spec"].get("replicas", 1)
        if len(pods) != wanted:
            names = {"replica_set": replica_set["metadata"]["name"], "from_replicas": len(pods), "to_replicas": wanted}
            logger.info("replica_set_scaled", extra=names)
        created = [await self._cluster.create(PODS, _new_pod(replica_set)) for _ in range(wanted - len(pods))]
        ranked = sorted(pods, key=_worth_keeping)
        surplus = max(0, len(pods) - wanted)
        for pod in ranked[:surplus]:
            await self._cluster.delete(PODS, pod)
        return [*ranked[surplus:], *created]

    async def _report(self, replica_set: Json, pods: list[Json]) -> float | None:
        now = times.now()
        template_labels = (replica_set["spec"]["template"].get("metadata") or {}).get("labels") or {}
        min_ready_seconds = replica_set["spec"].get("minReadySeconds", 0)
        waits = [seconds_until_available(pod, min_ready_seconds, now) for pod in pods]
        counts = {
            "replicas": len(pods),
            "fullyLabeledReplicas": sum(
                template_labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in pods
            ),
            "readyReplicas": sum(is_ready(pod) for pod in pods),
            "availableReplicas": sum(wait == 0 for wait in waits),
        }
        status: Json = {name: count or (0 if name == "replicas" else None) for name, count in counts.items()}
        status["observedGeneration"] = replica_set["metadata"].get("generation")
        current = self.replica_sets.get(key_of(replica_set)) or replica_set
        await self._cluster.patch_status(REPLICA_SETS, current, status)
        return min((wait for wait in waits if wait), default=None)


def _new_pod(replica_set: Json) -> Json:
    template = replica_set["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{replica_set['metadata']['name']}-",
            "namespace": replica_set["metadata"]["namespace"],
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [controller_reference(REPLICA_SETS, replica_set)],
        },
        "spec": template["spec"],
    }


def _worth_keeping(pod: Json) -> tuple[bool, bool, bool, int, int, str]:
    """Pods that sort first go first: unassigned, pending, not ready, cheap to delete, often restarted, young."""
    phase = (pod.get("status") or {}).get("phase")
    cost = int((pod["metadata"].get("annotations") or {}).get(_DELETION_COST, "0"))
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    restarts = sum(container.get("restartCount", 0) for container in containers)
    ready = condition(pod, "Ready")
    ready_since = (ready or {}).get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
    return (
        bool(pod["spec"].get("nodeName")),
        phase == "Running",
        is_ready(pod),
        cost,
        -restarts,
        _descending(ready_since),
    )


def _descending(time: str) -> str:
    """A text that sorts the other way round: the young first."""
    return "".join(chr(0x10000 - ord(character)) for character in time)
