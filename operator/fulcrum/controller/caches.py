"""What the API server has told of clusters and their children: watched, so that no tick reads anything.

The operator's own writes are in it at once (`record`): a tick after a write never acts on what was before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from fulcrum.api.names import LABEL_CLUSTER
from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import DEPLOYMENT, INFERENCE_CLUSTER, INFERENCE_SCALE, LEADER_WORKER_SET, POD, SERVICE
from fulcrum.controller.published import differ_in_measurements
from fulcrum.controller.seen import SeenGroup, SeenObject, SeenPod
from fulcrum.kube import Api, Key, Resource, Unreachable
from fulcrum.kube.informer import Informer

BEHIND_SECONDS: Final = 15.0
"""Longest outage of a watch, in seconds, over which decisions are still made: that of a call's deadline."""
_CHILDREN: Final = (POD, DEPLOYMENT, SERVICE, INFERENCE_SCALE, LEADER_WORKER_SET)
_OPTIONAL: Final = frozenset({INFERENCE_SCALE, LEADER_WORKER_SET})
"""An operator goes on without them where a CRD is not installed, or its rights are those of an older release."""
_SHAPES: Final[dict[Resource, type[msgspec.Struct]]] = {POD: SeenPod, LEADER_WORKER_SET: SeenGroup}


class Caches:
    """InferenceClusters with their Pods, Deployments, Services and InferenceScales."""

    def __init__(self, api: Api, namespaces: Sequence[str], *, changed: Callable[[Key], None]) -> None:
        """Of `namespaces`, or of all when there are none; `changed` is told which cluster a change is about."""
        self._changed = changed
        self._everywhere = not namespaces
        self._pods: dict[Key, dict[str, Manifest]] = {}
        self._informers: dict[tuple[Resource, str | None], Informer] = {}
        for namespace in namespaces or (None,):
            clusters = Informer(api, INFERENCE_CLUSTER, namespace=namespace, shape=SeenObject)
            clusters.subscribe(self._cluster_changed)
            self._informers[INFERENCE_CLUSTER, namespace] = clusters
            for resource in _CHILDREN:
                informer = Informer(
                    api,
                    resource,
                    namespace=namespace,
                    labels={LABEL_CLUSTER: ""},
                    shape=_SHAPES.get(resource, SeenObject),
                    optional=resource in _OPTIONAL,
                )
                informer.subscribe(self._pod_changed if resource is POD else self._child_changed)
                self._informers[resource, namespace] = informer

    async def run(self) -> None:
        """Follow everything until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def synced(self, namespace: str | None = None) -> None:
        """Wait until all of a namespace has been read once; of all of them for None."""
        for informer in self._of(namespace):
            await informer.synced.wait()

    async def any_synced(self) -> None:
        """Wait until all of one namespace has been read once."""
        namespaces = {namespace for _, namespace in self._informers}
        waiting = [asyncio.ensure_future(self.synced(namespace)) for namespace in namespaces]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def complete(self, namespace: str) -> bool:
        """Whether all of a namespace has been read once."""
        return all(informer.synced.is_set() for informer in self._of(namespace))

    def check(self, namespace: str) -> None:
        """Raise Unreachable when something of a namespace has been out of date for too long to act on."""
        for informer in self._of(namespace):
            seconds = informer.behind_seconds
            if seconds is not None and seconds > BEHIND_SECONDS:
                raise Unreachable(f"{informer.resource.plural} have not been watched for {seconds:.0f} s")

    @property
    def behind_seconds(self) -> float | None:
        """For how long a watch has been down, in seconds; None while all of them stand."""
        return max((s for informer in self._of(None) if (s := informer.behind_seconds) is not None), default=None)

    def _of(self, namespace: str | None) -> list[Informer]:
        """The informers of a namespace: what one namespace's rights stop does not stop another."""
        wanted = None if self._everywhere else namespace
        return [each for (_, found), each in self._informers.items() if namespace is None or found == wanted]

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """Return an object, None where there is none."""
        return self._informer(resource, namespace).get((namespace, name))

    def is_missing(self, resource: Resource, namespace: str) -> bool:
        """Report whether an optional resource cannot be read."""
        return self._informer(resource, namespace).missing

    def of_cluster(self, resource: Resource, cluster: Key) -> list[Manifest]:
        """Return the objects of a resource, of which a cluster has few, that carry the cluster's label."""
        namespace, name = cluster
        found = self._informer(resource, namespace).in_namespace(namespace)
        return [each for each in found if each["metadata"]["labels"][LABEL_CLUSTER] == name]

    def clusters(self) -> list[Manifest]:
        """Return all InferenceClusters."""
        return [
            obj for (resource, _), known in self._informers.items() if resource is INFERENCE_CLUSTER for obj in known
        ]

    def pods(self, cluster: Key) -> list[Manifest]:
        """Return the Pods that carry a cluster's label; of them only what `SeenPod` keeps."""
        return list(self._pods.get(cluster, {}).values())

    def record(self, resource: Resource, obj: Manifest) -> None:
        """Note what a write returned."""
        if resource is INFERENCE_CLUSTER or resource in _CHILDREN:
            self._informer(resource, obj["metadata"]["namespace"]).record(obj)

    def record_deletion(self, resource: Resource, key: Key, uid: str) -> None:
        """Note that a deletion was accepted."""
        if resource in _CHILDREN:
            self._informer(resource, key[0]).record_deletion(key, uid)

    def _informer(self, resource: Resource, namespace: str) -> Informer:
        return self._informers[resource, None if self._everywhere else namespace]

    def _cluster_changed(self, old: Manifest | None, new: Manifest | None) -> None:
        if old is not None and new is not None and differ_in_measurements(old, new):
            return
        metadata = (new or old or {})["metadata"]
        self._changed((metadata["namespace"], metadata["name"]))

    def _child_changed(self, old: Manifest | None, new: Manifest | None) -> None:
        for key in {_owner_of(each) for each in (old, new) if each is not None}:
            self._changed(key)

    def _pod_changed(self, old: Manifest | None, new: Manifest | None) -> None:
        if old is not None:
            known = self._pods[_owner_of(old)]
            del known[old["metadata"]["name"]]
            if not known:
                del self._pods[_owner_of(old)]
        if new is not None:
            self._pods.setdefault(_owner_of(new), {})[new["metadata"]["name"]] = new
        self._child_changed(old, new)


def _owner_of(child: Manifest) -> Key:
    metadata = child["metadata"]
    return metadata["namespace"], metadata["labels"][LABEL_CLUSTER]
