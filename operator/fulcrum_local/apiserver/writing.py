"""Create, update, patch and delete: the one path on which objects change."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from typing import Final

from fulcrum.api.schema.json_copy import json_copy
from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.conversion import served_form, stored_form
from fulcrum_local.apiserver.decoding import check_body, decoded
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.lifecycles import Lifecycles
from fulcrum_local.apiserver.metadata import metadata_causes
from fulcrum_local.apiserver.store import Store, Stored
from fulcrum_local.apiserver.strategies import Strategies, Strategy
from fulcrum_local.apiserver.times import now_text
from fulcrum_local.apiserver.write_options import WriteOptions
from fulcrum_local.objects.server_side_apply import record_update

_NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SYSTEM_METADATA: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_STATUS_KEEPS_METADATA: Final = frozenset({"pods", "nodes", "namespaces", "services"})
"""Kinds whose status may be written together with labels and annotations."""
_TERMINATING: Final = "because it is being terminated"

Changer = Callable[[Json], Json]


class Writer:
    """Writes objects into the store the way the real server does; everything is synchronous, hence atomic."""

    def __init__(self, store: Store, strategies: Strategies, lifecycles: Lifecycles) -> None:
        self._store = store
        self._strategies = strategies
        self._lifecycles = lifecycles

    def create(self, kind: Kind, namespace: str, body: Json, options: WriteOptions, *, managed: bool = False) -> Json:
        """A new object; `managed` when its managedFields are already right (server-side apply)."""
        check_body(kind, namespace, body)
        self._require_namespace(kind, namespace, body)
        obj = decoded(self._strategies.of(kind), kind, body, options)
        metadata = obj["metadata"] = dict(obj.get("metadata") or {})
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if kind.namespaced:
            metadata["namespace"] = namespace
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(kind, namespace, metadata["generateName"])
        for name in (*_SYSTEM_METADATA, "selfLink"):
            metadata.pop(name, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_text()}
        if kind.has_generation:
            metadata["generation"] = 1
        if kind.resets_status:
            obj.pop("status", None)
        strategy = self._strategies.of(kind)
        obj = strategy.default(obj)
        self._check_metadata(kind, obj)
        if self._store.get(kind.storage, metadata.get("namespace", ""), metadata["name"]) is not None:
            raise errors.already_exists(kind.group, kind.plural, metadata["name"])
        self._lifecycles.prepare(kind, obj, None, options.user)
        self._validate(kind, strategy, obj, None)
        if not managed:
            obj = self._record(kind, None, obj, options, "")
        return self._store_object(kind, obj, options)

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Changer,
        options: WriteOptions,
        *,
        subresource: str = "",
        managed: bool = False,
        through: str = "",
    ) -> Json:
        """The object after `change` (which gets the live object and must not modify it); no difference, no write.

        `through` names a subresource that changes the main object, for managedFields.
        """
        stored = self._existing(kind, namespace, name)
        live = served_form(kind, stored.obj)
        wanted = change(live)
        check_body(kind, namespace, wanted, name=name, patched=options.patched)
        strategy = self._strategies.of(kind)
        wanted = decoded(strategy, kind, wanted, options)
        self._check_preconditions(kind, wanted["metadata"], stored, uid_is_one=not (options.patched or managed))
        _refuse_another_identity(kind, live["metadata"], wanted["metadata"])
        new = self._isolated(kind, live, wanted, subresource)
        new = strategy.default(new)
        self._check_metadata(kind, new)
        _refuse_new_finalizers(kind, live["metadata"], new["metadata"])
        if not subresource:
            self._lifecycles.prepare(kind, new, stored_form(kind, live), options.user)
        self._count_generation(kind, live, new)
        self._validate(kind, strategy, new, live)
        if not managed:
            new = self._record(kind, live, new, options, subresource or through)
        new["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if same_but_for_times(live, new):
            return live
        return self._finish(kind, stored, new, options)

    def strategy(self, kind: Kind) -> Strategy:
        """How objects of the kind are treated."""
        return self._strategies.of(kind)

    def _require_namespace(self, kind: Kind, namespace: str, body: Json) -> None:
        if not kind.namespaced:
            return
        stored = self._store.get("namespaces", "", namespace)
        if stored is None:
            raise errors.not_found("", "namespaces", namespace)
        if stored.obj["metadata"].get("deletionTimestamp"):
            name = (body.get("metadata") or {}).get("name", "")
            why = f"unable to create new content in namespace {namespace} {_TERMINATING}"
            text = f"namespace {namespace} is being terminated"
            causes = [{"reason": "NamespaceTerminating", "message": text, "field": "metadata.namespace"}]
            raise errors.forbidden(kind.group, kind.plural, name, why, causes)

    def _free_name(self, kind: Kind, namespace: str, prefix: str) -> str:
        while True:
            name = prefix[:58] + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
            if self._store.get(kind.storage, namespace, name) is None:
                return name

    def _existing(self, kind: Kind, namespace: str, name: str) -> Stored:
        stored = self._store.get(kind.storage, namespace, name)
        if stored is None:
            raise errors.not_found(kind.group, kind.plural, name)
        return stored

    def _check_preconditions(self, kind: Kind, metadata: Json, stored: Stored, *, uid_is_one: bool) -> None:
        """409: only for a PUT is the uid a precondition; what a patch makes of it is validated."""
        live = stored.obj["metadata"]
        if uid_is_one and metadata.get("uid") and metadata["uid"] != live["uid"]:
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {live['uid']}"
            raise errors.conflict(kind.group, kind.plural, live["name"], why)
        version = metadata.get("resourceVersion")
        if version and not version.isdecimal():
            raise ApiError(500, f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version and version != live["resourceVersion"]:
            raise errors.conflict(kind.group, kind.plural, live["name"], errors.OBJECT_MODIFIED)

    def _isolated(self, kind: Kind, live: Json, wanted: Json, subresource: str) -> Json:
        """`wanted`, restricted to what the path may change."""
        system = {name: live["metadata"][name] for name in _SYSTEM_METADATA if name in live["metadata"]}
        metadata = {name: value for name, value in wanted["metadata"].items() if name not in _SYSTEM_METADATA}
        metadata |= {"name": live["metadata"]["name"], **system}
        if "namespace" in live["metadata"]:
            metadata["namespace"] = live["metadata"]["namespace"]
        if "managedFields" not in metadata and "managedFields" in live["metadata"]:
            metadata["managedFields"] = live["metadata"]["managedFields"]
        if subresource == "status":
            if kind.storage not in _STATUS_KEEPS_METADATA:
                kept = json_copy(live["metadata"])
                if "managedFields" in metadata:
                    kept["managedFields"] = metadata["managedFields"]
                metadata = kept
            new = {**json_copy(live), "metadata": metadata}
            new.pop("status", None)
            return new | ({"status": wanted["status"]} if "status" in wanted else {})
        new = {**wanted, "metadata": metadata}
        if kind.resets_status:
            new.pop("status", None)
            if "status" in live:
                new["status"] = json_copy(live["status"])
        return new

    def _check_metadata(self, kind: Kind, obj: Json) -> None:
        causes = metadata_causes(kind, obj["metadata"])
        if causes:
            raise errors.invalid(kind.group, kind.kind, obj["metadata"].get("name", ""), causes)

    def _validate(self, kind: Kind, strategy: Strategy, obj: Json, old: Json | None) -> None:
        causes = strategy.causes(obj, old)
        if causes:
            raise errors.invalid(kind.group, kind.kind, obj["metadata"]["name"], causes)

    def _count_generation(self, kind: Kind, live: Json, new: Json) -> None:
        if not kind.has_generation:
            return
        if _content(new, kind.resets_status or kind.custom is None) != _content(
            live, kind.resets_status or kind.custom is None
        ):
            new["metadata"]["generation"] = live["metadata"].get("generation", 0) + 1

    def _record(self, kind: Kind, old: Json | None, new: Json, options: WriteOptions, subresource: str) -> Json:
        return record_update(
            old, new, manager=options.manager, lists=self.strategy(kind).lists, now=now_text(), subresource=subresource
        )

    def _finish(self, kind: Kind, stored: Stored, new: Json, options: WriteOptions) -> Json:
        metadata = new["metadata"]
        gone = (
            metadata.get("deletionTimestamp")
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
            and not (kind.storage == "namespaces" and new["spec"].get("finalizers"))
        )
        if not gone:
            return self._store_object(kind, new, options)
        if not options.dry_run:
            self._store.remove(kind.storage, stored.key)
        return new

    def _store_object(self, kind: Kind, obj: Json, options: WriteOptions) -> Json:
        if options.dry_run:
            return obj
        return served_form(kind, self._store.put(kind.storage, stored_form(kind, obj)).obj)


def _refuse_another_identity(kind: Kind, live: Json, wanted: Json) -> None:
    """422 where a write makes another object of it, or ends it. The end of an ending object is kept, not compared."""
    ending = () if live.get("deletionTimestamp") else ("deletionTimestamp", "deletionGracePeriodSeconds")
    causes = [
        errors.invalid_value(f"metadata.{field}", wanted[field], "field is immutable")
        for field in ("uid", *ending)
        if wanted.get(field) is not None and wanted[field] != live.get(field)
    ]
    if causes:
        raise errors.invalid(kind.group, kind.kind, live["name"], causes)


def _refuse_new_finalizers(kind: Kind, live: Json, new: Json) -> None:
    if not live.get("deletionTimestamp"):
        return
    added = sorted(set(new.get("finalizers") or ()) - set(live.get("finalizers") or ()))
    if added:
        listed = ", ".join(f'"{name}"' for name in added)
        text = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{listed}}}"
        )
        cause = errors.cause("metadata.finalizers", "FieldValueForbidden", text)
        raise errors.invalid(kind.group, kind.kind, live["name"], [cause])


def _content(obj: Json, without_status: bool) -> Json:
    left_out = {"metadata", "status"} if without_status else {"metadata"}
    return {name: value for name, value in obj.items() if name not in left_out}


def same_but_for_times(live: Json, new: Json) -> bool:
    """Whether a write would change nothing but the times in managedFields; such a write is not done."""
    live_metadata, new_metadata = live["metadata"], new["metadata"]
    if {**live, "metadata": None} != {**new, "metadata": None}:
        return False
    if {**live_metadata, "managedFields": None} != {**new_metadata, "managedFields": None}:
        return False
    return _timeless(live_metadata.get("managedFields")) == _timeless(new_metadata.get("managedFields"))


def _timeless(entries: list[Json] | None) -> list[Json]:
    return [{**entry, "time": None} for entry in entries or ()]
