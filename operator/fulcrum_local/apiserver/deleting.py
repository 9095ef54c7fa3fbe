"""Deletion: preconditions, grace periods, finalizers and propagation, for one object or a collection."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.bodies import checked
from fulcrum_local.apiserver.conversion import served_form
from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.store import Store, Stored
from fulcrum_local.apiserver.times import now, time_text

_PROPAGATION_FINALIZERS: Final = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_RETURNS_OBJECT: Final = frozenset({"pods", "services", "serviceaccounts", "persistentvolumeclaims"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """How to delete; `grace_seconds` None is the object's own default."""

    grace_seconds: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _Body(msgspec.Struct, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: list[str] | None = None


def parse_delete_options(sent: Any, query: Any) -> DeleteOptions:
    """Options from a request's body, or from its query where the body says nothing: 400 and 422 where they are none."""
    body = checked(sent, _Body)
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
    orphan = body.get("orphanDependents", query.get("orphanDependents"))
    if orphan is not None and propagation:
        why = "propagationPolicy: Invalid value: orphanDependents and deletionPropagation cannot be both set"
        raise errors.ApiError(422, f'DeleteOptions.meta.k8s.io "" is invalid: {why}')
    dry_run = body.get("dryRun") or [value for value in query.getall("dryRun", []) if value]
    if any(value != "All" for value in dry_run):
        why = f"dryRun: Unsupported value: {dry_run!r}: supported values: All"
        raise errors.ApiError(422, f'DeleteOptions.meta.k8s.io "" is invalid: {why}')
    if orphan is not None:
        propagation = "Orphan" if orphan in (True, "true", "1") else "Background"
    if propagation not in ("", "Foreground", "Background", "Orphan"):
        message = f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{propagation}"'
        raise errors.ApiError(422, message)
    return DeleteOptions(
        grace_seconds=None if grace is None else max(0, int(grace)),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=propagation,
        dry_run=bool(dry_run),
    )


class Deleter:
    """Deletes at once, or marks an object that finalizers or a grace period still hold."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Json:
        """Delete one object; the object where it lives on or its kind returns it, else a Status."""
        stored = self._store.get(kind.storage, namespace, name)
        if stored is None:
            raise errors.not_found(kind.group, kind.plural, name)
        self._check_preconditions(kind, stored, options)
        left = self._delete(kind, stored, options)
        if left is not None:
            return served_form(kind, left)
        if kind.storage in _RETURNS_OBJECT:
            return served_form(kind, stored.obj)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": errors.details(kind.group, kind.plural, name, stored.obj["metadata"]["uid"]),
        }

    def delete_collection(self, kind: Kind, selected: list[Stored], options: DeleteOptions) -> None:
        """Delete every object of a list that is still there."""
        for stored in selected:
            current = self._store.get(kind.storage, *stored.key)
            if current is not None:
                self._delete(kind, current, options)

    def _check_preconditions(self, kind: Kind, stored: Stored, options: DeleteOptions) -> None:
        metadata = stored.obj["metadata"]
        if options.uid and options.uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {metadata['uid']}"
            raise errors.conflict(kind.group, kind.plural, metadata["name"], why)
        if options.resource_version and options.resource_version != metadata["resourceVersion"]:
            why = (
                f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
                f"ResourceVersion in object meta: {metadata['resourceVersion']}"
            )
            raise errors.conflict(kind.group, kind.plural, metadata["name"], why)

    def _delete(self, kind: Kind, stored: Stored, options: DeleteOptions) -> Json | None:
        """The object as it lives on, or None when it is gone."""
        obj = stored.obj
        metadata = dict(obj["metadata"])
        grace = _grace_seconds(kind, obj, options.grace_seconds)
        finalizers = _finalizers(metadata.get("finalizers") or [], options.propagation)
        held = bool(finalizers) or (kind.storage == "namespaces" and bool(obj["spec"].get("finalizers")))
        if not held and not grace:
            if not options.dry_run:
                self._store.remove(kind.storage, stored.key)
            return None
        if metadata.get("deletionTimestamp"):
            # Already terminating: write only if the deadline moved earlier or the finalizers changed.
            if grace < metadata.get("deletionGracePeriodSeconds", 0):
                metadata["deletionTimestamp"] = time_text(now() + dt.timedelta(seconds=grace))
                metadata["deletionGracePeriodSeconds"] = grace
        else:
            metadata["deletionTimestamp"] = time_text(now() + dt.timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if kind.has_generation:
                metadata["generation"] = metadata.get("generation", 0) + 1
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        marked = {**obj, "metadata": metadata}
        if kind.storage == "namespaces":
            marked["status"] = {**obj.get("status", {}), "phase": "Terminating"}
        if marked == obj or options.dry_run:
            return marked
        return self._store.put(kind.storage, marked).obj


def _grace_seconds(kind: Kind, obj: Json, asked: int | None) -> int:
    if kind.storage != "pods":
        return 0
    # Nothing runs (yet, or any more): no kubelet would confirm a graceful end.
    if not obj["spec"].get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


def _finalizers(present: list[str], propagation: str) -> list[str]:
    kept = [name for name in present if not propagation or name not in _PROPAGATION_FINALIZERS.values()]
    added = _PROPAGATION_FINALIZERS.get(propagation)
    return [*kept, added] if added else kept
