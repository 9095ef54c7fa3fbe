"""Which object owns which: an index of objects by uid, and of dependents by the uid of their owner. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum_local.controllers.resources import Json, Key, Resource, key_of

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class Ref:
    """One object: where it is, and which one it is."""

    resource: Resource
    key: Key
    uid: str


class Ownership:
    """The graph of everything that can own or be owned."""

    def __init__(self) -> None:
        """Empty; informers fill it."""
        self._objects: dict[str, tuple[Ref, Json]] = {}
        self._dependents: dict[str, set[str]] = {}

    def note(self, resource: Resource, old: Json | None, new: Json | None) -> None:
        """Take in one change."""
        for owner in owners_of(old):
            self._dependents.get(owner["uid"], set()).discard(_uid(old))
        if old is not None and (new is None or _uid(old) != _uid(new)):
            self._objects.pop(_uid(old), None)
        if new is not None:
            self._objects[_uid(new)] = (Ref(resource, key_of(new), _uid(new)), new)
            for owner in owners_of(new):
                self._dependents.setdefault(owner["uid"], set()).add(_uid(new))

    def find(self, uid: str) -> tuple[Ref, Json] | None:
        """An object by its uid."""
        return self._objects.get(uid)

    def dependents(self, uid: str) -> list[tuple[Ref, Json]]:
        """The objects that name `uid` as an owner."""
        return [self._objects[each] for each in self._dependents.get(uid, ()) if each in self._objects]

    def owned(self) -> list[Ref]:
        """Every object that has an owner, or is being deleted with its dependents in mind."""
        return [ref for ref, obj in self._objects.values() if owners_of(obj) or is_waiting(obj)]


def _uid(obj: Json | None) -> str:
    uid: str = obj["metadata"]["uid"] if obj is not None else ""
    return uid


def owners_of(obj: Json | None) -> list[Json]:
    """The owner references of an object."""
    return (obj["metadata"].get("ownerReferences") or []) if obj is not None else []


def has_finalizer(obj: Json, finalizer: str) -> bool:
    """Whether an object is held by `finalizer`."""
    return finalizer in (obj["metadata"].get("finalizers") or ())


def is_deleting(obj: Json) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in obj["metadata"]


def is_waiting(obj: Json) -> bool:
    """Whether an object waits for the garbage collector before it goes."""
    return is_deleting(obj) and (has_finalizer(obj, FOREGROUND) or has_finalizer(obj, ORPHAN))
