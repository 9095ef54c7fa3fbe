"""The objects: in memory for reading, in one SQLite file for keeping, with a log of recent changes for watches.

Everything here is synchronous and runs on the server's event loop, so a read-modify-write without an `await` in it is
atomic. A write is in SQLite before `put` or `remove` returns: it survives a SIGKILL right after the reply.
"""

from __future__ import annotations

import bisect
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from fulcrum_local.apiserver.errors import ApiError, Json, expired, too_large_resource_version

Key = tuple[str, str]
"""`(namespace, name)`."""

FIRST_VERSION: Final = 2
"""Of an empty store. Clients give 0 a special meaning, and 1 must be as outdated here as it is in a real cluster."""
LOG_LENGTH: Final = 2000
"""Changes that are remembered for each resource; a watch that resumes from before them gets 410."""
LOG_BYTES: Final = 16 * 1024 * 1024
"""Size of the objects in one resource's log: 2000 ConfigMaps of 1 MiB would be 2 GiB."""
LONGEST_OBJECT_BYTES: Final = 1536 * 1024
"""The largest request that etcd takes by default."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
    storage TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (storage, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (storage TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
"""
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Stored:
    """One object as written; `obj` is never modified."""

    version: int
    obj: Json
    raw: bytes

    @property
    def key(self) -> Key:
        """`(namespace, name)`."""
        metadata = self.obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write: `old` is None for a creation; a deletion's `new` is the last state under the deletion's version."""

    version: int
    storage: str
    key: Key
    old: Stored | None
    new: Stored
    deleted: bool = False


Listener = Callable[[Change], None]


@dataclass(slots=True)
class _Resource:
    objects: dict[str, dict[str, Stored]] = field(default_factory=dict)
    log: deque[Change] = field(default_factory=deque)
    log_bytes: int = 0
    floor: int = FIRST_VERSION
    """Changes up to this version are not in the log any more."""
    listeners: list[Listener] = field(default_factory=list)


class Store:
    """All objects of all kinds, and one resourceVersion that grows with every write."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        # NORMAL: safe against the death of the process; only a power cut may lose the last writes, never consistency.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._resources: defaultdict[str, _Resource] = defaultdict(_Resource)
        for storage, version in self._db.execute("SELECT storage, version FROM history"):
            self._resources[storage].floor = version
        for storage, namespace, name, version, body in self._db.execute(
            "SELECT storage, namespace, name, version, body FROM objects"
        ):
            self._resources[storage].objects.setdefault(namespace, {})[name] = Stored(version, _decode(body), body)
        self.version = max((resource.floor for resource in self._resources.values()), default=FIRST_VERSION)

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self._db.close()

    def get(self, storage: str, namespace: str, name: str) -> Stored | None:
        """The object, or None."""
        return self._resources[storage].objects.get(namespace, {}).get(name)

    def scan(self, storage: str, namespace: str = "") -> list[Stored]:
        """Objects of a namespace, or of all (empty), by namespace and name."""
        objects = self._resources[storage].objects
        spaces = [namespace] if namespace else sorted(objects)
        return [stored for space in spaces for _, stored in sorted(objects.get(space, {}).items())]

    def count(self, storage: str, namespace: str = "") -> int:
        """Number of objects, without looking at them."""
        objects = self._resources[storage].objects
        return len(objects.get(namespace, ())) if namespace else sum(map(len, objects.values()))

    def storages_in(self, namespace: str) -> list[str]:
        """Storage keys that hold something in the namespace."""
        return [storage for storage, resource in self._resources.items() if resource.objects.get(namespace)]

    def scan_at(self, storage: str, namespace: str, version: int) -> list[Stored]:
        """`scan` as it was at `version`, by undoing what was logged since; 410 when the log does not reach back."""
        now = {stored.key: stored for stored in self.scan(storage, namespace)}
        for change in reversed(self.changes_since(storage, version)):
            if namespace and change.key[0] != namespace:
                continue
            if change.old is None:
                now.pop(change.key, None)
            else:
                now[change.key] = change.old
        return [now[key] for key in sorted(now)]

    def changes_since(self, storage: str, version: int) -> list[Change]:
        """Changes after `version`, oldest first; 410 when some of them are forgotten, 504 for the future."""
        resource = self._resources[storage]
        if version > self.version:
            raise too_large_resource_version(version, self.version)
        if version < resource.floor:
            raise expired(f"too old resource version: {version} ({resource.floor})")
        log = resource.log
        return [log[i] for i in range(bisect.bisect_right(log, version, key=lambda change: change.version), len(log))]

    def put(self, storage: str, obj: Json) -> Stored:
        """Write an object under the next version; `obj` is taken over, its metadata gets the version."""
        version = self.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        stored = Stored(version, obj, _encode(obj))
        if len(stored.raw) > LONGEST_OBJECT_BYTES:
            raise ApiError(500, "etcdserver: request is too large", reason="")
        namespace, name = stored.key
        with self._transaction():
            self._db.execute(
                "INSERT INTO objects VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET version = excluded.version, body = excluded.body",
                (storage, namespace, name, version, stored.raw),
            )
            self._note(storage, version)
        resource = self._resources[storage]
        old = resource.objects.get(namespace, {}).get(name)
        resource.objects.setdefault(namespace, {})[name] = stored
        self._publish(Change(version=version, storage=storage, key=(namespace, name), old=old, new=stored))
        return stored

    def remove(self, storage: str, key: Key) -> Stored:
        """Delete an object that exists; returns its last state under the deletion's version."""
        namespace, name = key
        resource = self._resources[storage]
        old = resource.objects[namespace][name]
        version = self.version + 1
        last = {**old.obj, "metadata": {**old.obj["metadata"], "resourceVersion": str(version)}}
        with self._transaction():
            self._db.execute(
                "DELETE FROM objects WHERE storage = ? AND namespace = ? AND name = ?", (storage, namespace, name)
            )
            self._note(storage, version)
        del resource.objects[namespace][name]
        if not resource.objects[namespace]:
            del resource.objects[namespace]
        stored = Stored(version, last, _encode(last))
        self._publish(Change(version=version, storage=storage, key=key, old=old, new=stored, deleted=True))
        return stored

    def listen(self, storage: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every later change of the resource, in order; returns how to stop that."""
        listeners = self._resources[storage].listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def forget(self, storage: str) -> None:
        """Make watches of a resource start over (its CRD went, so what is in the log means nothing any more)."""
        resource = self._resources[storage]
        resource.log.clear()
        resource.log_bytes = 0
        resource.floor = self.version

    def compact(self) -> None:
        """Forget the changes so far: watches go on, but none can resume from before now."""
        for storage in self._resources:
            self.forget(storage)

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("BEGIN")
        return self._db  # as a context manager it commits, or rolls back on an error

    def _note(self, storage: str, version: int) -> None:
        self._db.execute(
            "INSERT INTO history VALUES (?, ?) ON CONFLICT DO UPDATE SET version = excluded.version",
            (storage, version),
        )

    def _publish(self, change: Change) -> None:
        self.version = change.version
        resource = self._resources[change.storage]
        resource.log.append(change)
        resource.log_bytes += len(change.new.raw)
        while len(resource.log) > LOG_LENGTH or (resource.log_bytes > LOG_BYTES and len(resource.log) > 1):
            forgotten = resource.log.popleft()
            resource.floor = forgotten.version
            resource.log_bytes -= len(forgotten.new.raw)
        for listener in tuple(resource.listeners):
            listener(change)
