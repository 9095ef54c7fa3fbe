"""A local copy of a collection, kept up to date by list and watch; it also knows what this process wrote itself.

Reading one's own writes matters: a controller that does not see the Pod it just created would create another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from fulcrum.kube.api import Api
from fulcrum.kube.errors import ApiError
from fulcrum.kube.reading import UNREADABLE, Unreadable
from fulcrum.kube.resources import Json, Key, Resource, key_of
from fulcrum.kube.watch import Bookmark, Changed, Connected, Illegible, Interrupted, Listed, follow, selector

logger = logging.getLogger(__name__)

LASTING_SECONDS: Final = 30.0
"""How long an optional resource that could be read must be refused before it counts as missing: after a restart an API
server answers 403 until it has loaded its roles, and 404 until it serves a CRD."""
_ANEW_SECONDS: Final = 5.0
"""Pause after a defect, before the collection is read anew."""

Subscriber = Callable[[Json | None, Json | None], None]
"""Called with the object before and after; None where it is not there."""


class Informer:
    """The objects of one resource."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        shape: type[msgspec.Struct] | None = None,
        optional: bool = False,
    ) -> None:
        """Of `namespace` or (None) all, with `labels` and `fields`; `run` begins to read.

        `optional`: while the API server has no such resource, or gives no right to read it, there are no objects of it;
        of one that could be read before, only once that lasts (`LASTING_SECONDS`).
        `shape` names the fields worth keeping; None keeps all. The others are skipped while an answer is decoded: whole
        Pods take 50 kB each, and a list of 10,000 of them does not fit beside the copy.
        """
        self.resource = resource
        self.synced = asyncio.Event()
        self.missing = False
        """The resource is optional, and cannot be read."""
        self._behind_since: float | None = None
        """Loop time since which the watch is down; None while it stands."""
        self._api = api
        self._path = resource.collection(namespace)
        self._selectors = selector(labels or {}, fields or {})
        self._shape: Any = dict[str, Any] if shape is None else shape
        self._objects: dict[Key, Json] = {}
        self._optional = optional
        self._was_read = False
        self._refused_since: float | None = None
        """Loop time since which the API server has refused to show the resource."""
        self._seen_version = 0
        self._subscribers: list[Subscriber] = []

    def __iter__(self) -> Iterator[Json]:
        return iter(tuple(self._objects.values()))

    @property
    def behind_seconds(self) -> float | None:
        """For how long the watch has been down, in seconds; None while it stands."""
        return None if self._behind_since is None else asyncio.get_running_loop().time() - self._behind_since

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
            self._put(obj if self._shape == dict[str, Any] else _plain(msgspec.convert(obj, self._shape)))

    def record_deletion(self, key: Key, uid: str) -> None:
        """Note that the API server accepted a deletion: until it is gone, the object counts as terminating."""
        known = self._objects.get(key)
        if known is not None and known["metadata"]["uid"] == uid and "deletionTimestamp" not in known["metadata"]:
            metadata = {**known["metadata"], "deletionTimestamp": known["metadata"]["creationTimestamp"]}
            self._put({**known, "metadata": metadata})

    async def run(self) -> None:
        """Follow the collection until cancelled. What goes wrong here is told and begun anew: others go on."""
        while True:
            try:
                await self._follow()
            except Exception:
                logger.exception("informer_failed resource=%s path=%s", self.resource.plural, self._path)
                self._fall_behind()
            await asyncio.sleep(_ANEW_SECONDS)

    async def _follow(self) -> None:
        async for event in follow(self._api, self._path, self._shape, selectors=self._selectors):
            match event:
                case Listed(items=items, version=version, unreadable=unreadable):
                    self.missing, self._was_read, self._refused_since = False, True, None
                    stubs = [stub for each in unreadable if (stub := self._stub(each)) is not None]
                    self._replace([*items, *stubs], int(version))
                    self.synced.set()
                case Illegible(kind=kind, object=found, version=version):
                    self._seen_version = int(version)
                    if (stub := self._stub(found)) is not None:
                        self._change(kind, stub)
                case Changed(kind=kind, object=obj, version=version):
                    self._seen_version = int(version)
                    self._change(kind, _plain(obj))
                case Bookmark(version=version):
                    self._seen_version = int(version)
                case Connected():
                    self._behind_since = None
                case Interrupted(error=ApiError(code=403 | 404)) if self._optional:
                    if self._refusal_lasts():
                        self._miss()
                case Interrupted(error=error):
                    self._refused_since = None  # a server that is away says nothing about its resources
                    self._fall_behind()
                    gone = isinstance(error, ApiError) and error.code == 410
                    logger.log(
                        logging.DEBUG if gone else logging.WARNING,
                        "watch_interrupted resource=%s error=%s",
                        self.resource.plural,
                        error,
                    )

    def _refusal_lasts(self) -> bool:
        """Report whether a refusal means that the resource is missing: a server whose rights load refuses, too."""
        now = asyncio.get_running_loop().time()
        self._refused_since = now if self._refused_since is None else self._refused_since
        return not self._was_read or now - self._refused_since >= LASTING_SECONDS

    def _fall_behind(self) -> None:
        if self._behind_since is None:
            self._behind_since = asyncio.get_running_loop().time()

    def _stub(self, found: Unreadable | None) -> Json | None:
        """What is kept of an object that cannot be read; None where the shape has no place for it."""
        stub = found.stub if found is not None else {"metadata": {}}
        why = stub.get(UNREADABLE, "it has no name")
        logger.warning(
            "object_unreadable resource=%s namespace=%s name=%s why=%r",
            self.resource.plural, stub["metadata"].get("namespace"), stub["metadata"].get("name"), why,
        )  # fmt: skip
        keeps = self._shape == dict[str, Any] or UNREADABLE in self._shape.__struct_fields__
        return stub if keeps and found is not None else None

    def _miss(self) -> None:
        if not self.missing:
            logger.info("resource_missing resource=%s", self.resource.plural)
        self.missing, self._behind_since = True, None
        for obj in self:
            self._remove(obj)
        self.synced.set()

    def _change(self, kind: str, obj: Json) -> None:
        known = self._objects.get(key_of(obj))
        if kind == "DELETED":
            self._remove(obj)
        elif known is None or _version(obj) > _version(known):
            self._put(obj)

    def _replace(self, items: list[Any], version: int) -> None:
        """A list is the only statement about what vanished; what was written after it is still to be told of."""
        self._seen_version = version
        listed: set[Key] = set()
        news: list[Json] = []
        for obj in map(_plain, items):
            listed.add(key_of(obj))
            known = self._objects.get(key_of(obj))
            if known is None or _version(obj) > _version(known):
                news.append(obj)
        for key, known in list(self._objects.items()):
            if key not in listed and _version(known) <= version:
                del self._objects[key]
                self._notify(known, None)
        for obj in news:
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


def _plain(obj: Any) -> Json:
    return obj if isinstance(obj, dict) else cast("Json", msgspec.to_builtins(obj))


def _version(obj: Json) -> int:
    """Resource versions are comparable integers (guaranteed by Kubernetes since 1.35, true before)."""
    return int(obj["metadata"]["resourceVersion"])
