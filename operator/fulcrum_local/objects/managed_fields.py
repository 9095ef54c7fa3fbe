"""Reading and writing `metadata.managedFields`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fulcrum_local.objects import field_set
from fulcrum_local.objects.field_set import FieldSet

_SORTED_BY = ("operation", "time", "manager", "apiVersion", "subresource")
_SERVER_METADATA = (
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_UNOWNED = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {("f:metadata", f"f:{name}") for name in (*_SERVER_METADATA, "name", "namespace", "deletionGracePeriodSeconds")}
)
"""Fields without an owner: they identify the object or belong to the server."""


class Manager(NamedTuple):
    """Which manager owns fields, and through which kind of request."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def described(self) -> str:
        """As a conflict names it."""
        text = json.dumps(self.name)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource)}"
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


Managers = dict[Manager, FieldSet]


def ownable(fields: FieldSet) -> FieldSet:
    """The fields of a set that a manager can own."""
    return frozenset(path for path in fields if path and path not in _UNOWNED)


def without_managed_fields(obj: dict[str, Any]) -> dict[str, Any]:
    """A shallow copy of the object without managedFields."""
    if "managedFields" not in (obj.get("metadata") or {}):
        return dict(obj)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


def without_server_fields(applied: dict[str, Any]) -> dict[str, Any]:
    """An applied configuration without the metadata that only the server writes."""
    metadata = {name: value for name, value in (applied.get("metadata") or {}).items() if name not in _SERVER_METADATA}
    return {**applied, "metadata": metadata}


def are_sent(obj: dict[str, Any]) -> bool:
    """Whether a client sent managedFields that can be read; `[]` and `[{}]` can, and forget every manager."""
    entries = (obj.get("metadata") or {}).get("managedFields")
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and (not entry or (entry.get("operation") in {"Apply", "Update"} and isinstance(entry.get("fieldsV1"), dict)))
        for entry in entries
    )


def read(obj: dict[str, Any]) -> Managers:
    """The managers of an object."""
    return {_manager(entry): field_set.from_v1(entry["fieldsV1"]) for entry in _entries(obj)}


def _entries(obj: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [entry for entry in ((obj or {}).get("metadata") or {}).get("managedFields") or () if entry]


def _manager(entry: dict[str, Any]) -> Manager:
    return Manager(
        entry.get("manager", ""), entry["operation"], entry.get("apiVersion", ""), entry.get("subresource", "")
    )


def written(
    obj: dict[str, Any], managers: Managers, old: dict[str, Any] | None, *, active: Manager, now: str
) -> dict[str, Any]:
    """`obj` with the managers; an entry keeps its time unless `active` wrote and something changed."""
    entries = {_manager(entry): entry for entry in _entries(old)}
    same_fields = managers.get(active, FieldSet()) == _fields(entries, active)
    unchanged = old is not None and same_fields and obj == without_managed_fields(old)
    times = {manager: entry.get("time") for manager, entry in entries.items()}
    if not unchanged:
        times[active] = now
    listed = [_entry(manager, fields, times.get(manager) or now) for manager, fields in managers.items() if fields]
    listed.sort(key=lambda each: [each.get(name, "") for name in _SORTED_BY])
    metadata = {**(obj.get("metadata") or {}), "managedFields": listed}
    if not listed:
        del metadata["managedFields"]
    return {**obj, "metadata": metadata}


def _fields(entries: dict[Manager, dict[str, Any]], manager: Manager) -> FieldSet:
    return field_set.from_v1(entries[manager]["fieldsV1"]) if manager in entries else FieldSet()


def _entry(manager: Manager, fields: FieldSet, time: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": field_set.to_v1(fields),
    }
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry
