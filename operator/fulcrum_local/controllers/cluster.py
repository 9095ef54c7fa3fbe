"""The cluster as controllers see it: shared informers, and writes that the informers know of at once."""

from __future__ import annotations

import asyncio
from typing import Any

from fulcrum.kube import MERGE, Api, ApiError
from fulcrum.kube.informer import Informer
from fulcrum_local.controllers.resources import Json, Key, Resource, key_of


class Cluster:
    """One API server; errors of its methods are those of `Api`."""

    def __init__(self, api: Api, tasks: asyncio.TaskGroup) -> None:
        """Informers run in `tasks`."""
        self._api = api
        self._tasks = tasks
        self._informers: dict[Resource, tuple[Informer, asyncio.Task[None]]] = {}

    def informer(self, resource: Resource) -> Informer:
        """The one informer of a resource, started when it is first asked for."""
        if resource not in self._informers:
            informer = Informer(self._api, resource)
            self._informers[resource] = (informer, self._tasks.create_task(informer.run()))
        return self._informers[resource][0]

    def forget(self, resource: Resource) -> None:
        """Stop following a resource that is no longer served."""
        _, task = self._informers.pop(resource)
        task.cancel()

    def close(self) -> None:
        """Stop every informer."""
        for _, task in self._informers.values():
            task.cancel()

    async def get(self, path: str) -> Json:
        """Read any path."""
        return await self._api.get(path)

    async def create(self, resource: Resource, obj: Json) -> Json:
        """Create an object."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return self._recorded(resource, await self._api.create(resource.collection(_namespace_of(obj)), body))

    async def replace(self, resource: Resource, obj: Json) -> Json:
        """Write an object as a whole; fails with 409 when it has changed since it was read."""
        return self._recorded(resource, await self._api.replace(resource.path(key_of(obj)), obj))

    async def patch(self, resource: Resource, obj: Json, patch: Json, subresource: str = "") -> Json:
        """Merge-patch an object; fails with 409 when it has changed since it was read."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": obj["metadata"]["resourceVersion"]}
        path = resource.path(key_of(obj), subresource)
        patched = await self._api.patch(path, {**patch, "metadata": metadata}, content_type=MERGE)
        return self._recorded(resource, patched)

    async def patch_status(self, resource: Resource, obj: Json, status: Json) -> None:
        """Write the fields of `status` that differ; null removes one. No difference, no request."""
        current = obj.get("status") or {}
        changed = {name: value for name, value in status.items() if current.get(name) != value}
        if changed:
            await self.patch(resource, obj, {"status": changed}, "status")

    async def delete(
        self, resource: Resource, obj: Json, propagation: str = "Background", *, grace_seconds: int | None = None
    ) -> None:
        """Delete exactly this object; that it is gone already is no error."""
        key, uid = key_of(obj), obj["metadata"]["uid"]
        try:
            await self._api.delete(resource.path(key), uid=uid, grace_seconds=grace_seconds, propagation=propagation)
        except ApiError as error:
            if error.code not in {404, 409}:
                raise
        if resource in self._informers:
            self._informers[resource][0].record_deletion(key, uid)

    async def post(self, resource: Resource, key: Key, subresource: str, body: dict[str, Any]) -> None:
        """Create a subresource, such as a Pod's binding."""
        await self._api.create(resource.path(key, subresource), body)

    def _recorded(self, resource: Resource, obj: Json) -> Json:
        if resource in self._informers:
            self._informers[resource][0].record(obj)
        return obj


def _namespace_of(obj: Json) -> str:
    """The namespace of an object that may have no name yet."""
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace
