"""Watches: what changed since a version, then every change as it happens, with bookmarks in between."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from fulcrum_local.apiserver import errors, tables
from fulcrum_local.apiserver.conversion import served_form
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.presentation import Form, encode, object_bytes, partial
from fulcrum_local.apiserver.reading import selection
from fulcrum_local.apiserver.request import Target, flag, parse_version
from fulcrum_local.apiserver.store import Change, Store, Stored

BOOKMARK_SECONDS: Final = 60.0
BOOKMARK_BEFORE_END_SECONDS: Final = 2.0
LONGEST_BACKLOG: Final = 20_000
"""Events that may wait for a slow client before its watch is ended; it can resume from the last one it got."""
_INITIAL_EVENTS_END: Final = {"k8s.io/initial-events-end": "true"}
_DEFAULT_MINUTES: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What a watch asks for; `since` None means: begin with everything there is."""

    since: int | None
    initial_events_end: bool
    bookmarks: bool
    timeout_seconds: float


def parse_watch_options(query: Mapping[str, str], current: int) -> WatchOptions:
    """Options from a query; 422 for combinations that make no sense."""
    version_text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    asked = parse_version(version_text or "0")
    bookmarks = flag(query, "allowWatchBookmarks")
    wants_initial = flag(query, "sendInitialEvents")
    if "sendInitialEvents" in query:
        if match != "NotOlderThan":
            raise _invalid("resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch "
                           "to NotOlderThan")  # fmt: skip
    elif match:
        raise _invalid("resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless "
                       "sendInitialEvents is provided")  # fmt: skip
    if asked > current:
        raise errors.too_large_resource_version(asked, current)
    if wants_initial or not asked:
        since = None if wants_initial or "sendInitialEvents" not in query else current
    else:
        since = asked
    timeout = float(int(query.get("timeoutSeconds") or 0))
    # Spread over twice the default, so that many watches do not reconnect at the same moment.
    timeout = timeout or _DEFAULT_MINUTES * 60 * (1 + random.random())  # noqa: S311 - not a secret
    return WatchOptions(
        since=since, initial_events_end=wants_initial and bookmarks, bookmarks=bookmarks, timeout_seconds=timeout
    )


def _invalid(message: str) -> ApiError:
    return ApiError(422, f'ListOptions.meta.k8s.io "" is invalid: {message}')


class Watch:
    """One client's watch; iterate over it for the lines to send."""

    def __init__(self, store: Store, kind: Kind, target: Target, query: Mapping[str, str], form: Form) -> None:
        self._store, self._kind, self._namespace, self._form = store, kind, target.namespace, form
        self._options = parse_watch_options(query, store.version)
        self._selected = selection(kind, query, target.name)
        self._backlog: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._ended = self._closed = False
        self._table_head_sent = False
        # Registered before anything is awaited, so no change falls between what is there and what comes.
        self._begin()
        self._stop_listening = store.listen(kind.storage, self._on_change)

    @property
    def storage(self) -> str:
        """Key of the watched resource in the store."""
        return self._kind.storage

    def end(self) -> None:
        """Finish after what is waiting has been sent."""
        self._ended = True
        self._wake.set()

    def close(self) -> None:
        """Stop listening; nothing is kept of the watch."""
        if not self._closed:
            self._closed = True
            self._stop_listening()

    async def lines(self) -> AsyncIterator[bytes]:
        """JSON lines, as many at once as are waiting, until the watch times out or is ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.timeout_seconds
        bookmark_at = min(loop.time() + BOOKMARK_SECONDS, deadline - BOOKMARK_BEFORE_END_SECONDS)
        if not self._options.bookmarks:
            bookmark_at = float("inf")
        while True:
            if self._backlog:
                lines = b"".join(self._backlog)
                self._backlog.clear()
                yield lines
            now = loop.time()
            if self._ended or now >= deadline:
                return
            self._wake.clear()
            if self._options.bookmarks and now >= bookmark_at:
                self._backlog.append(self._bookmark())
                # One more shortly before the end, so that the client resumes from there.
                last = deadline - BOOKMARK_BEFORE_END_SECONDS
                bookmark_at = min(now + BOOKMARK_SECONDS, last) if now < last else float("inf")
                continue
            await self._sleep(min(deadline, bookmark_at) - now)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _begin(self) -> None:
        since = self._options.since
        if since is not None:
            for change in self._store.changes_since(self._kind.storage, since):
                self._add(change)
            return
        for stored in self._store.scan(self._kind.storage, self._namespace):
            if self._selected is None or self._selected(stored):
                self._backlog.append(self._line("ADDED", stored))
        if self._options.initial_events_end:
            self._backlog.append(self._bookmark(_INITIAL_EVENTS_END))

    def _on_change(self, change: Change) -> None:
        if len(self._backlog) >= LONGEST_BACKLOG:
            self.end()
        if not self._ended:
            self._add(change)
            self._wake.set()

    def _add(self, change: Change) -> None:
        if self._namespace and change.key[0] != self._namespace:
            return
        selected = self._selected
        was = change.old is not None and (selected is None or selected(change.old))
        now_is = not change.deleted and (selected is None or selected(change.new))
        if now_is:
            self._backlog.append(self._line("MODIFIED" if was else "ADDED", change.new))
        elif was:
            self._backlog.append(self._line("DELETED", self._last_state(change)))

    def _last_state(self, change: Change) -> Stored:
        """For an object that stopped matching: what the client knew, under the version of the change."""
        if change.deleted or change.old is None:
            return change.new
        old = change.old.obj
        obj = {**old, "metadata": {**old["metadata"], "resourceVersion": str(change.version)}}
        return Stored(change.version, obj, encode(obj))

    def _line(self, event: str, stored: Stored) -> bytes:
        if self._form.kind == "Table":
            body = encode(self._table([served_form(self._kind, stored.obj)], str(stored.version)))
        elif self._form.kind:
            body = encode(partial(stored.obj))
        else:
            body = object_bytes(self._kind, stored)
        return b'{"type":"' + event.encode() + b'","object":' + body + b"}\n"

    def _table(self, objects: list[Json], version: str) -> Json:
        table = tables.table(self._kind, objects, self._form.include, {"resourceVersion": version})
        if self._table_head_sent:
            table["columnDefinitions"] = None
        self._table_head_sent = True
        return table

    def _bookmark(self, annotations: Mapping[str, str] | None = None) -> bytes:
        metadata: Json = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = dict(annotations)
        obj: Json = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata}
        if self._form.kind == "Table":
            obj = {**self._table([], metadata["resourceVersion"]), "rows": []}
            obj["rows"] = [{"cells": [], "object": {**partial({"metadata": metadata})}}]
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def error_line(error: ApiError) -> bytes:
    """An ERROR event, which ends a watch."""
    return encode({"type": "ERROR", "object": error.status()}) + b"\n"
