"""A local copy of a collection, kept up to date by list and watch; it also knows what this process wrote itself.

Reading one's own writes matters: a controller that does not see the Pod it just created would create another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import msgspec

from fulcrum.local.controllers.resources import Json, Key, Resource, key_of
from fulcrum.local.kubelet.rest import Api, ApiError, Unreachable

logger = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 5.0

Subscriber = Callable[[Json | None, Json | None], None]
"""Called with the object before and after; None where it is not there."""


class Informer:
    """The objects of one resource, in all namespaces."""

    def __init__(self, api: Api, resource: Resource) -> None:
        """Nothing is read before `run`."""
        self.resource = resource
        self.synced = asyncio.Event()
        self._api = api
        self._objects: dict[Key, Json] = {}
        self._seen_version = 0
        self._subscribers: list[Subscriber] = []

    def __iter__(self) -> Iterator[Json]:
        return iter(tuple(self._objects.values()))

    def get(self, key: Key) -> Json | None:
        """The object as it was last seen or written."""
        return self._objects.get(key)

    def in_namespace(self, namespace: str) -> list[Json]:
        """The objects of a namespace."""
        return [obj for (found, _), obj in self._objects.items() if found == namespace]

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` for every object that is known, and for every change from now on."""
        self._subscribers.append(subscriber)
        for obj in self:
            subscriber(None, obj)

    def record(self, obj: Json) -> None:
        """Note what a write returned, unless the watch has already told of it."""
        version = _version(obj)
        known = self._objects.get(key_of(obj))
        if version > self._seen_version and (known is None or version > _version(known)):
            self._put(obj)

    def record_deletion(self, key: Key, uid: str) -> None:
        """Note that the API server accepted a deletion: until it is gone, the object counts as terminating."""
        known = self._objects.get(key)
        if known is not None and known["metadata"]["uid"] == uid and "deletionTimestamp" not in known["metadata"]:
            metadata = {**known["metadata"], "deletionTimestamp": known["metadata"]["creationTimestamp"]}
            self._put({**known, "metadata": metadata})

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        delay_seconds = _FIRST_RETRY_SECONDS
        while True:
            try:
                listed = await self._api.get(self.resource.path())
                version = listed["metadata"]["resourceVersion"]
                self._replace(listed.get("items") or [], int(version))
                self.synced.set()
                delay_seconds = _FIRST_RETRY_SECONDS
                await self._watch(version)
            except (ApiError, Unreachable, msgspec.DecodeError) as error:
                gone = isinstance(error, ApiError) and error.code == 410
                logger.log(
                    logging.DEBUG if gone else logging.WARNING,
                    "list_again",
                    extra={"resource": self.resource.plural, "error": str(error)},
                )
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, _LONGEST_RETRY_SECONDS)

    async def _watch(self, version: str) -> None:
        while True:
            async for kind, obj in self._api.watch(self.resource.path(), {"resourceVersion": version}):
                version = obj["metadata"]["resourceVersion"]
                self._seen_version = int(version)
                if kind == "DELETED":
                    self._remove(obj)
                elif kind != "BOOKMARK":
                    known = self._objects.get(key_of(obj))
                    if known is None or _version(obj) > _version(known):
                        self._put(obj)

    def _replace(self, objects: list[Json], version: int) -> None:
        """A list is the only statement about what vanished; what was written after it is still to be told of."""
        self._seen_version = version
        listed = {key_of(obj): obj for obj in objects}
        for key, known in list(self._objects.items()):
            if key not in listed and _version(known) <= version:
                del self._objects[key]
                self._notify(known, None)
        for key, obj in listed.items():
            known_now = self._objects.get(key)
            if known_now is None or _version(obj) > _version(known_now):
                self._put(obj)

    def _put(self, obj: Json) -> None:
        # Items of a list do not say what they are.
        obj = {**obj, "apiVersion": self.resource.api_version, "kind": self.resource.kind}
        key = key_of(obj)
        old = self._objects.get(key)
        self._objects[key] = obj
        if old is not None and old["metadata"]["uid"] != obj["metadata"]["uid"]:
            self._notify(old, None)
            old = None
        self._notify(old, obj)

    def _remove(self, obj: Json) -> None:
        known = self._objects.get(key_of(obj))
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self._objects[key_of(obj)]
            self._notify(known, None)

    def _notify(self, old: Json | None, new: Json | None) -> None:
        for subscriber in self._subscribers:
            subscriber(old, new)


def _version(obj: Json) -> int:
    """Resource versions are comparable integers (guaranteed by Kubernetes since 1.35, true before)."""
    return int(obj["metadata"]["resourceVersion"])
