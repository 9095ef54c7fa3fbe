"""List-watch: a whole list, then each change, for ever; a new list where the server no longer knows our version."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from fulcrum.kube.api import Api
from fulcrum.kube.errors import ApiError, ApiFailure, Unreachable
from fulcrum.kube.reading import ObjectReader, Unreadable, elements, members

logger = logging.getLogger(__name__)

PAGE: Final = 500
"""Objects of one page of a list: the size that client-go and kubectl use."""
RELIST_SECONDS: Final = 300.0
"""A new list this often prunes what a watch has missed."""
_GRACE_SECONDS: Final = 15.0
"""The server ends a watch by itself; that much later the connection counts as dead."""
_FIRST_DELAY_SECONDS: Final = 0.1
_LONGEST_DELAY_SECONDS: Final = 5.0
_LISTED_AGAIN: Final = frozenset({400, 401, 403, 404, 410})
"""After these answers to a watch the version is not used again."""

T = TypeVar("T")
Selectors = Mapping[str, str]
"""Query parameters `labelSelector` and `fieldSelector`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """The whole collection; whatever is in neither list is gone."""

    items: list[T]
    version: str
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Generic[T]):
    """One object was ADDED, MODIFIED or DELETED."""

    kind: str
    object: T
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegible:
    """One object was ADDED, MODIFIED or DELETED, and cannot be read."""

    kind: str
    object: Unreadable | None
    """None: it does not even say its name."""
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """Everything up to `version` has been told."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The watch stands (again)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """What follows is late: the server refused or cannot be reached, and is tried again."""

    error: ApiFailure


Event = Listed[T] | Changed[T] | Illegible | Bookmark | Connected | Interrupted


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - as on the wire
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ObjectMeta(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - as on the wire


class _Versioned(msgspec.Struct):
    metadata: _ObjectMeta


class _Status(msgspec.Struct):
    code: int = 500
    reason: str = ""
    message: str = ""


_PAGE: Final = msgspec.json.Decoder(_Page)
_EVENT: Final = msgspec.json.Decoder(_WatchEvent)
_VERSIONED: Final = msgspec.json.Decoder(_Versioned)
_STATUS: Final = msgspec.json.Decoder(_Status)


def selector(labels: Mapping[str, str], fields: Mapping[str, str] | None = None) -> dict[str, str]:
    """The query that selects objects with all of `labels` and `fields`; an empty value asks for the label alone."""
    terms = {
        "labelSelector": ",".join(f"{name}={value}" if value else name for name, value in labels.items()),
        "fieldSelector": ",".join(f"{name}={value}" for name, value in (fields or {}).items()),
    }
    return {name: term for name, term in terms.items() if term}


async def list_pages(
    api: Api, path: str, selectors: Selectors, type_: type[T]
) -> tuple[list[T], str, tuple[Unreadable, ...]]:
    """The whole collection, read page by page, its version, and the objects in it that cannot be read."""
    reader = ObjectReader(type_)
    items: list[T] = []
    unreadable: list[Unreadable] = []
    query = {**selectors, "limit": str(PAGE)}
    while True:
        try:
            page = await _page_of(await api.request("GET", path, params=query))
        except ApiError as error:
            if error.code != 410 or "continue" not in query:
                raise
            # The first pages are too old to go on from: all at once, then.
            items, unreadable, query = [], [], dict(selectors)
            continue
        except msgspec.DecodeError as error:
            raise Unreachable(f"the list of {path} cannot be read: {error}") from error
        for raw in page.items or ():
            found = reader.read(raw)
            if isinstance(found, Unreadable):
                unreadable.append(found)
            elif found is not None:
                items.append(found)
            else:
                logger.warning("object_ignored path=%s reason=no_name", path)
        if not page.metadata.continue_:
            return items, page.metadata.resourceVersion, tuple(unreadable)
        query["continue"] = page.metadata.continue_


async def _page_of(content: bytes) -> _Page:
    """Split a page into its objects. Errors: msgspec.DecodeError."""
    try:
        return _PAGE.decode(content)
    except RecursionError:
        # Slow, and so beside what else goes on.
        parts = await asyncio.to_thread(members, content)
        items = await asyncio.to_thread(elements, parts.get("items", b""))
        metadata = msgspec.json.decode(parts.get("metadata", b"{}"), type=_ListMeta)
        return _Page(metadata=metadata, items=[msgspec.Raw(item) for item in items])


async def follow(
    api: Api,
    path: str,
    type_: type[T],
    *,
    selectors: Selectors | None = None,
    relist_seconds: float = RELIST_SECONDS,
) -> AsyncIterator[Event[T]]:
    """Follow the collection at `path` for ever. Only a `Listed` says what has vanished: it prunes.

    `type_` is what objects are decoded as; `dict[str, Any]` keeps everything.
    """
    query = dict(selectors or {})
    version: str | None = None
    relist_at = 0.0
    delay_seconds = _FIRST_DELAY_SECONDS
    now = asyncio.get_running_loop().time
    while True:
        began_at = now()
        try:
            if version is None or began_at >= relist_at:
                items, version, unreadable = await list_pages(api, path, query, type_)
                yield Listed(items=items, version=version, unreadable=unreadable)
                relist_at = now() + relist_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load, no secret
            seconds = max(1.0, min(relist_at - now(), RELIST_SECONDS))
            changes = cast(
                "AsyncGenerator[Event[T], None]",
                _watch(api, path, type_, selectors=query, version=version, seconds=seconds),
            )
            async with contextlib.aclosing(changes):
                async for change in changes:
                    if isinstance(change, Changed | Illegible | Bookmark):
                        version = change.version
                    yield change
        except ApiFailure as error:
            if isinstance(error, ApiError) and error.code in _LISTED_AGAIN:
                version = None
            yield Interrupted(error=error)
        else:
            if now() - began_at >= 1.0:  # an ordinary end; a server that ends each watch at once must not be stormed
                delay_seconds = _FIRST_DELAY_SECONDS
                continue
        if now() - began_at > _LONGEST_DELAY_SECONDS:
            delay_seconds = _FIRST_DELAY_SECONDS
        await asyncio.sleep(delay_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, no secret
        delay_seconds = min(2 * delay_seconds, _LONGEST_DELAY_SECONDS)


async def _watch(
    api: Api, path: str, type_: type[T], *, selectors: Selectors, version: str, seconds: float
) -> AsyncIterator[Event[T]]:
    """One watch until the server ends it. Errors: ApiFailure."""
    query = {
        **selectors,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(int(seconds)),
    }
    reader = ObjectReader(type_)
    pending = bytearray()
    chunks = cast("AsyncGenerator[bytes, None]", api.stream(path, query, seconds=seconds + _GRACE_SECONDS))
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            if not chunk:
                yield Connected()
                continue
            *lines, rest = chunk.split(b"\n")
            if not lines:
                pending += rest
                continue
            lines[0] = bytes(pending) + lines[0]
            pending = bytearray(rest)
            for line in lines:
                if line:
                    yield await _event_of(line, reader)


async def _event_of(line: bytes, reader: ObjectReader[Any]) -> Event[Any]:
    try:
        try:
            event = _EVENT.decode(line)
        except RecursionError:
            parts = await asyncio.to_thread(members, line)
            kind = msgspec.json.decode(parts.get("type", b""), type=str)
            event = _WatchEvent(type=kind, object=msgspec.Raw(parts.get("object", b"")))
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            raise ApiError(status.code, status.reason, status.message)
        if event.type == "BOOKMARK":
            return Bookmark(version=_VERSIONED.decode(event.object).metadata.resourceVersion)
        found = reader.read(event.object)
        if found is None or isinstance(found, Unreadable):
            return Illegible(kind=event.type, object=found, version=_version_of(event.object, found))
        return Changed(kind=event.type, object=found, version=_version_of(event.object, None))
    except msgspec.DecodeError as error:
        raise ApiError(410, "Expired", f"an event of the watch cannot be read: {error}") from error


def _version_of(raw: msgspec.Raw, unreadable: Unreadable | None) -> str:
    if unreadable is not None:
        return str(unreadable.stub["metadata"]["resourceVersion"])
    return _VERSIONED.decode(raw).metadata.resourceVersion
