"""The garbage collector: what has lost its owners goes, and what is deleted in the foreground waits for its dependents.

Source: https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging

from fulcrum.kube import ApiError, ApiFailure
from fulcrum_local.controllers import discovery
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.ownership import (
    FOREGROUND,
    ORPHAN,
    Ownership,
    Ref,
    has_finalizer,
    is_deleting,
    is_waiting,
    owners_of,
)
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import Json, Resource, key_of

logger = logging.getLogger(__name__)
_DISCOVERY_SECONDS = 30.0
_RESYNC_SECONDS = 60.0
_CRDS = Resource(
    api_version="apiextensions.k8s.io/v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
)


class GarbageCollection:
    """Follows every kind that the API server serves."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is followed before `run`, except the definitions that say which kinds there are."""
        self._cluster = cluster
        self._queue = WorkQueue[Ref]("garbage_collection")
        self._graph = Ownership()
        self._followed: set[Resource] = set()
        self._kinds_changed = asyncio.Event()
        self.informers = (cluster.informer(_CRDS),)

    async def run(self) -> None:
        """Work until cancelled."""
        self._cluster.informer(_CRDS).subscribe(lambda *_: self._kinds_changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_kinds())
            tasks.create_task(self._resync())
            tasks.create_task(self._queue.run(self._reconcile))

    async def _follow_kinds(self) -> None:
        while True:
            self._kinds_changed.clear()
            delay_seconds = _DISCOVERY_SECONDS
            try:
                served = await discovery.resources(self._cluster)
            except ApiFailure as error:
                logger.warning("discovery_failed", extra={"error": str(error)})
                delay_seconds = 1.0
            else:
                self._follow(served)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._kinds_changed.wait()
                await asyncio.sleep(0.1)  # a definition is served a moment after it is stored

    def _follow(self, served: set[Resource]) -> None:
        for resource in served - self._followed:
            self._cluster.informer(resource).subscribe(functools.partial(self._note, resource))
        for resource in self._followed - served:
            for obj in self._cluster.informer(resource):
                self._note(resource, obj, None)
            self._cluster.forget(resource)
        self._followed = set(served)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(_RESYNC_SECONDS)
            for ref in self._graph.owned():
                self._queue.add(ref)

    def _note(self, resource: Resource, old: Json | None, new: Json | None) -> None:
        self._graph.note(resource, old, new)
        if new is not None and (owners_of(new) or is_waiting(new)):
            self._queue.add(Ref(resource, key_of(new), new["metadata"]["uid"]))
        if new is None and old is not None:
            for ref, _ in self._graph.dependents(old["metadata"]["uid"]):
                self._queue.add(ref)
            for owner in owners_of(old):
                found = self._graph.find(owner["uid"])
                if found is not None and is_waiting(found[1]):
                    self._queue.add(found[0])

    async def _reconcile(self, ref: Ref) -> float | None:
        found = self._graph.find(ref.uid)
        if found is None:
            return None
        obj = found[1]
        if is_waiting(obj):
            return await self._finish(ref, obj)
        if not is_deleting(obj) and owners_of(obj):
            await self._collect(ref, obj)
        return None

    async def _finish(self, ref: Ref, obj: Json) -> float | None:
        """Let go of an object that waits: after its dependents are gone, or no longer its dependents."""
        if not all(self._cluster.informer(each).synced.is_set() for each in self._followed):
            return 0.2  # a dependent might not be known yet
        dependents = self._graph.dependents(ref.uid)
        if has_finalizer(obj, ORPHAN):
            for dependent, content in dependents:
                kept = [owner for owner in owners_of(content) if owner["uid"] != ref.uid]
                await self._cluster.patch(dependent.resource, content, {"metadata": {"ownerReferences": kept}})
            await self._release(ref, obj, ORPHAN)
            return None
        blocking = [
            dependent
            for dependent, content in dependents
            if any(owner["uid"] == ref.uid and owner.get("blockOwnerDeletion") for owner in owners_of(content))
        ]
        for dependent, content in dependents:
            if not is_deleting(content):
                self._queue.add(dependent)
        if not blocking:
            await self._release(ref, obj, FOREGROUND)
        return None

    async def _release(self, ref: Ref, obj: Json, finalizer: str) -> None:
        kept = [each for each in obj["metadata"]["finalizers"] if each != finalizer]
        await self._cluster.patch(ref.resource, obj, {"metadata": {"finalizers": kept}})
        logger.info(
            "finalizer_removed", extra={"kind": ref.resource.kind, "object": ref.key[1], "finalizer": finalizer}
        )

    async def _collect(self, ref: Ref, obj: Json) -> None:
        """Delete an object when none of its owners is left; forget the owners that are not."""
        left, waiting = [], []
        for owner in owners_of(obj):
            state = await self._state_of(ref, owner)
            if state == "there":
                left.append(owner)
            elif state == "waiting":
                waiting.append(owner)
        if left:
            if len(left) < len(owners_of(obj)):
                await self._cluster.patch(ref.resource, obj, {"metadata": {"ownerReferences": left}})
            return
        foreground = bool(waiting and self._graph.dependents(ref.uid)) or has_finalizer(obj, FOREGROUND)
        policy = "Foreground" if foreground else "Orphan" if has_finalizer(obj, ORPHAN) else "Background"
        await self._cluster.delete(ref.resource, obj, policy)
        logger.info("collected", extra={"kind": ref.resource.kind, "object": ref.key[1], "policy": policy})

    async def _state_of(self, ref: Ref, owner: Json) -> str:
        """`there`, `waiting` (it is deleted in the foreground) or `gone`. An owner that is not known is asked for."""
        found = self._graph.find(owner["uid"])
        obj = found[1] if found is not None else await self._read(ref, owner)
        if obj is None or obj["metadata"]["uid"] != owner["uid"]:
            return "gone"
        return "waiting" if is_deleting(obj) and has_finalizer(obj, FOREGROUND) else "there"

    async def _read(self, ref: Ref, owner: Json) -> Json | None:
        resource = _served(self._followed, owner)
        if resource is None:
            # Kinds come and go: only the server itself knows that there can be no such object.
            resource = _served(await discovery.resources(self._cluster), owner)
        if resource is None:
            return None
        namespace = ref.key[0] if resource.namespaced else ""
        try:
            return await self._cluster.get(resource.path((namespace, owner["name"])))
        except ApiError as error:
            if error.code == 404:
                return None
            raise


def _served(resources: set[Resource], owner: Json) -> Resource | None:
    """The resource of an owner's kind, in whatever version its group prefers."""
    group = owner["apiVersion"].rpartition("/")[0]
    return next(
        (each for each in resources if (each.kind, each.api_version.rpartition("/")[0]) == (owner["kind"], group)), None
    )
