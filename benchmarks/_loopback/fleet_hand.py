"""Plays what runs Pods in a fleet of clusters: they become ready at once, and no process runs in them."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

from fulcrum.controller.seen import SeenPod
from fulcrum.kube import MERGE, Api, ApiFailure, Json, Resource, key_of
from fulcrum.kube.informer import Informer

POD = Resource(api_version="v1", kind="Pod", plural="pods")
DEPLOYMENT = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")


class Hand:
    """Plays kubelets and the Deployment controller, as fast as it can."""

    def __init__(self, api: Api, *, makes_gateways: bool = False) -> None:
        """`makes_gateways`: Deployments get their Pods; else only a status that says so."""
        self.api = api
        self._makes_gateways = makes_gateways
        self.pods = Informer(api, POD, shape=SeenPod)
        self.deployments = Informer(api, DEPLOYMENT)
        self.made: dict[str, int] = {}
        """Pods that each cluster has been given so far."""
        self._queue: asyncio.Queue[tuple[Resource, Json]] = asyncio.Queue()
        self._addresses = (f"127.{a}.{b}.{c}" for a in range(100, 200) for b in range(250) for c in range(1, 250))
        self.pods.subscribe(self._pod_changed)
        self.deployments.subscribe(
            lambda old, new: None if old or not new else self._queue.put_nowait((DEPLOYMENT, new))
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run())
            tasks.create_task(self.deployments.run())
            for _ in range(16):
                tasks.create_task(self._work())

    def _pod_changed(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            return
        if old is None:
            cluster = new["metadata"]["labels"].get("fulcrum.dev/cluster", "")
            self.made[cluster] = self.made.get(cluster, 0) + 1
        if old is None or "deletionTimestamp" in new["metadata"]:
            self._queue.put_nowait((POD, new))

    async def _work(self) -> None:
        while True:
            resource, obj = await self._queue.get()
            with contextlib.suppress(ApiFailure):
                if "deletionTimestamp" in obj["metadata"]:
                    await self.api.delete(resource.path(key_of(obj)), uid=obj["metadata"]["uid"], grace_seconds=0)
                    continue
                status = self._ready_pod() if resource is POD else _available(obj)
                path = resource.path(key_of(obj), "status")
                await self.api.patch(path, {"status": status}, content_type=MERGE)
                if resource is DEPLOYMENT and self._makes_gateways:
                    await self._make_pods(obj)

    async def _make_pods(self, deployment: Json) -> None:
        """Make the Pods of a new Deployment; a later change of its template changes none of them."""
        namespace, name = key_of(deployment)
        template = deployment["spec"]["template"]
        for number in range(deployment["spec"]["replicas"]):
            metadata = {**template["metadata"], "name": f"{name}-{number}"}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            await self.api.create(f"/api/v1/namespaces/{namespace}/pods", body)

    def _ready_pod(self) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "phase": "Running",
            "podIP": next(self._addresses),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }

    def of_cluster(self, name: str) -> list[Json]:
        """A cluster's Pods."""
        return [pod for pod in self.pods if pod["metadata"]["labels"].get("fulcrum.dev/cluster") == name]

    def workers(self, name: str) -> int:
        """How many Pods a cluster has."""
        return len(self.of_cluster(name))

    def count(self) -> int:
        """Pods that there are."""
        return sum(1 for _ in self.pods)


def _available(deployment: Json) -> Json:
    count = deployment["spec"]["replicas"]
    return {"replicas": count, "readyReplicas": count, "availableReplicas": count, "updatedReplicas": count}
