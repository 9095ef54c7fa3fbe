"""Deployments: rolling updates over ReplicaSets, and a status that `kubectl rollout status` understands."""

from __future__ import annotations

import logging

from fulcrum_local.controllers import deployment_status, rollout, times
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    Json,
    Key,
    controller_of,
    controller_reference,
    key_of,
)

logger = logging.getLogger(__name__)
_REVISION = "deployment.kubernetes.io/revision"
_NOT_INHERITED = frozenset({_REVISION, "kubectl.kubernetes.io/last-applied-configuration"})


class Deployments:
    """Creates ReplicaSets, moves replicas between them, and reports progress."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows Deployments, ReplicaSets and Pods."""
        self._cluster = cluster
        self._queue = WorkQueue[Key]("deployments")
        self.deployments, self.replica_sets = cluster.informer(DEPLOYMENTS), cluster.informer(REPLICA_SETS)
        self.pods = cluster.informer(PODS)
        self.informers = (self.deployments, self.replica_sets, self.pods)

    async def run(self) -> None:
        """Work until cancelled."""
        self.deployments.subscribe(self._note_deployment)
        self.replica_sets.subscribe(self._note_replica_set)
        self.pods.subscribe(self._note_pod)
        await self._queue.run(self._reconcile)

    def _note_deployment(self, old: Json | None, new: Json | None) -> None:
        if new is not None:
            self._queue.add(key_of(new))

    def _note_replica_set(self, old: Json | None, new: Json | None) -> None:
        for replica_set in (old, new):
            owner = controller_of(replica_set) if replica_set else None
            if replica_set and owner and owner["kind"] == DEPLOYMENTS.kind:
                self._queue.add((replica_set["metadata"]["namespace"], owner["name"]))

    def _note_pod(self, old: Json | None, new: Json | None) -> None:
        """With Recreate, the end of the last old Pod starts the new ones."""
        if old is not None and new is None and (owner := controller_of(old)):
            replica_set = self.replica_sets.get((old["metadata"]["namespace"], owner["name"]))
            self._note_replica_set(None, replica_set)

    async def _reconcile(self, key: Key) -> float | None:
        deployment = self.deployments.get(key)
        if deployment is None or "deletionTimestamp" in deployment["metadata"]:
            return None
        owned = self._owned(deployment)
        template = rollout.without_hash(deployment["spec"]["template"])
        new = next((each for each in owned if rollout.without_hash(each["spec"]["template"]) == template), None)
        old = [each for each in owned if each is not new]
        if not deployment["spec"].get("paused"):
            deployment, new = await self._ensure_new(deployment, new, old)
            if new is None:
                return None  # a name collision was noted, and wakes us again
            new, old = await self._move(deployment, new, old)
            await self._prune(deployment, old)
        elif new is not None:
            new = await self._resize(new, deployment["spec"].get("replicas", 1)) if not _total(old) else new
        status = deployment_status.of(deployment, new, old, times.now())
        await self._cluster.patch_status(DEPLOYMENTS, deployment, status)
        return deployment_status.seconds_to_deadline(deployment, status, times.now())

    def _owned(self, deployment: Json) -> list[Json]:
        uid = deployment["metadata"]["uid"]
        owned = [
            each
            for each in self.replica_sets.in_namespace(deployment["metadata"]["namespace"])
            if (owner := controller_of(each)) and owner["uid"] == uid and "deletionTimestamp" not in each["metadata"]
        ]
        return sorted(owned, key=lambda each: (each["metadata"]["creationTimestamp"], _revision(each)))

    async def _ensure_new(self, deployment: Json, new: Json | None, old: list[Json]) -> tuple[Json, Json | None]:
        """The ReplicaSet of the current template, with the highest revision; None after a collision of names."""
        latest = max((_revision(each) for each in old), default=0)
        if new is None:
            new = await self._create(deployment, latest + 1, old)
            if new is None:
                return deployment, None
        revision = max(_revision(new), latest + (1 if latest >= _revision(new) else 0))
        annotations = {**_inherited(deployment), _REVISION: str(revision)}
        new = await self._annotate(
            new, annotations, spec={"minReadySeconds": deployment["spec"].get("minReadySeconds", 0)}
        )
        if (deployment["metadata"].get("annotations") or {}).get(_REVISION) != str(revision):
            patch = {"metadata": {"annotations": {_REVISION: str(revision)}}}
            deployment = await self._cluster.patch(DEPLOYMENTS, deployment, patch)
        return deployment, new

    async def _create(self, deployment: Json, revision: int, old: list[Json]) -> Json | None:
        spec, metadata = deployment["spec"], deployment["metadata"]
        collisions = (deployment.get("status") or {}).get("collisionCount", 0)
        digest = rollout.template_hash(spec["template"], collisions)
        name = f"{metadata['name']}-{digest}"
        if self.replica_sets.get((metadata["namespace"], name)) is not None:
            await self._cluster.patch_status(DEPLOYMENTS, deployment, {"collisionCount": collisions + 1})
            return None
        template_metadata = spec["template"].get("metadata") or {}
        labels = {**(template_metadata.get("labels") or {}), rollout.POD_TEMPLATE_HASH: digest}
        selector = spec["selector"]
        matched = {**(selector.get("matchLabels") or {}), rollout.POD_TEMPLATE_HASH: digest}
        empty = rollout.Replicas(name=name, wanted=0, available=0)
        first = rollout.step(spec, empty, [_replicas(each) for each in old]).get(name, 0)
        logger.info(
            "rollout_started", extra={"deployment": metadata["name"], "replica_set": name, "revision": revision}
        )
        return await self._cluster.create(
            REPLICA_SETS,
            {
                "metadata": {
                    "name": name,
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "annotations": {**_inherited(deployment), _REVISION: str(revision)},
                    "ownerReferences": [controller_reference(DEPLOYMENTS, deployment)],
                },
                "spec": {
                    "replicas": first,
                    "minReadySeconds": spec.get("minReadySeconds", 0),
                    "selector": {**selector, "matchLabels": matched},
                    "template": {**spec["template"], "metadata": {**template_metadata, "labels": labels}},
                },
            },
        )

    async def _annotate(self, replica_set: Json, annotations: dict[str, str], spec: Json) -> Json:
        current = replica_set["metadata"].get("annotations") or {}
        changed = {name: value for name, value in annotations.items() if current.get(name) != value}
        changed_spec = {name: value for name, value in spec.items() if replica_set["spec"].get(name, 0) != value}
        if not changed and not changed_spec:
            return replica_set
        patch: Json = {"metadata": {"annotations": changed}, "spec": changed_spec}
        return await self._cluster.patch(REPLICA_SETS, replica_set, patch)

    async def _move(self, deployment: Json, new: Json, old: list[Json]) -> tuple[Json, list[Json]]:
        sizes = rollout.step(deployment["spec"], _replicas(new), [_replicas(each) for each in old])
        recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
        if recreate and new["metadata"]["name"] in sizes and self._has_pods(old):
            return new, old
        new = await self._resize(new, sizes.get(new["metadata"]["name"]))
        return new, [await self._resize(each, sizes.get(each["metadata"]["name"])) for each in old]

    def _has_pods(self, replica_sets: list[Json]) -> bool:
        uids = {each["metadata"]["uid"] for each in replica_sets}
        return any((owner := controller_of(pod)) and owner["uid"] in uids for pod in self.pods)

    async def _resize(self, replica_set: Json, replicas: int | None) -> Json:
        if replicas is None or replica_set["spec"].get("replicas", 1) == replicas:
            return replica_set
        logger.info(
            "rollout_step",
            extra={
                "replica_set": replica_set["metadata"]["name"],
                "from_replicas": replica_set["spec"].get("replicas", 1),
                "to_replicas": replicas,
            },
        )
        return await self._cluster.patch(REPLICA_SETS, replica_set, {"spec": {"replicas": replicas}})

    async def _prune(self, deployment: Json, old: list[Json]) -> None:
        """Forget old revisions beyond the history that is wanted."""
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        empty = [each for each in old if not _total([each]) and not (each.get("status") or {}).get("replicas")]
        for each in sorted(empty, key=_revision)[: max(0, len(old) - limit)]:
            await self._cluster.delete(REPLICA_SETS, each)


def _replicas(replica_set: Json) -> rollout.Replicas:
    return rollout.Replicas(
        name=replica_set["metadata"]["name"],
        wanted=replica_set["spec"].get("replicas", 1),
        available=(replica_set.get("status") or {}).get("availableReplicas", 0),
    )


def _total(replica_sets: list[Json]) -> int:
    return sum(each["spec"].get("replicas", 1) for each in replica_sets)


def _revision(replica_set: Json) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, "0"))


def _inherited(deployment: Json) -> dict[str, str]:
    annotations = deployment["metadata"].get("annotations") or {}
    return {name: value for name, value in annotations.items() if name not in _NOT_INHERITED}
