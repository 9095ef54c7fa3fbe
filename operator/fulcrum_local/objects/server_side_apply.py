"""Server-side apply and the bookkeeping of `metadata.managedFields`, on plain objects.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

from typing import Any

import msgspec

from fulcrum.api.schema.json_copy import json_copy
from fulcrum_local.objects import field_set, managed_fields
from fulcrum_local.objects.field_set import FieldSet, Path
from fulcrum_local.objects.list_types import ListTypes
from fulcrum_local.objects.managed_fields import Manager, Managers
from fulcrum_local.objects.patch import PatchError


class ConflictCause(msgspec.Struct, frozen=True):
    """One field that another manager owns with another value; `reason` is always FieldManagerConflict."""

    field: str
    message: str
    reason: str = "FieldManagerConflict"


class ApplyConflict(Exception):  # noqa: N818 - the name that Kubernetes gives it
    """Fields belong to other managers (HTTP 409); repeat with force to take them."""

    def __init__(self, conflicts: list[tuple[Manager, Path]]) -> None:
        """`conflicts` holds each field and its owner."""
        ordered = sorted(conflicts, key=lambda each: (each[0].name, each[1]))
        self.causes = [
            ConflictCause(field_set.text(path), f"conflict with {owner.described()}") for owner, path in ordered
        ]
        super().__init__(_conflict_text(ordered))


def _conflict_text(conflicts: list[tuple[Manager, Path]]) -> str:
    if len(conflicts) == 1:
        owner, path = conflicts[0]
        return f"Apply failed with 1 conflict: conflict with {owner.described()}: {field_set.text(path)}"
    lines = []
    for manager in dict.fromkeys(owner for owner, _ in conflicts):
        lines.append(f"conflicts with {manager.described()}:")
        lines += [f"- {field_set.text(path)}" for owner, path in conflicts if owner == manager]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def apply(
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    *,
    manager: str,
    force: bool,
    lists: ListTypes,
    now: str,
    subresource: str = "",
) -> dict[str, Any]:
    """The object after `manager` applied `applied`; equal to `live` when nothing changes.

    `now` is RFC 3339. For a subresource the caller passes only what belongs to it. Raises ApplyConflict,
    and PatchError when a list has an item twice.
    """
    if duplicate := field_set.duplicate_item(applied, lists):
        where = field_set.text(duplicate[:-1])
        raise PatchError(f"{where}: duplicate entries for key {field_set.text(duplicate[-1:])}")
    applied = managed_fields.without_server_fields(applied)
    before = managed_fields.without_managed_fields(live or {})
    managers = managed_fields.read(live or {})
    if live is not None and not managers:
        existing = managed_fields.ownable(field_set.fields_of(before, lists))
        managers = {Manager("before-first-apply", "Update", before.get("apiVersion", "")): existing}
    me = Manager(manager, "Apply", applied.get("apiVersion", before.get("apiVersion", "")), subresource)
    last, others = FieldSet(), dict[Manager, FieldSet]()
    for owner, fields in managers.items():
        if (owner.name, owner.operation, owner.subresource) == (me.name, me.operation, me.subresource):
            last |= fields  # also one that was applied through an older apiVersion
        else:
            others[owner] = fields
    claimed = managed_fields.ownable(field_set.fields_of(applied, lists))
    merged = _merged(before, applied, lists)
    after = _pruned(merged, last, claimed.union(*others.values()), lists)
    changed = field_set.changes(before, after, lists)
    others = _taken_over(others, changed, force=force)
    return managed_fields.written(after, {**others, me: claimed}, live, active=me, now=now)


def record_update(
    old: dict[str, Any] | None,
    new: dict[str, Any],
    *,
    manager: str,
    lists: ListTypes,
    now: str,
    subresource: str = "",
) -> dict[str, Any]:
    """`new` with managedFields after a create, update or patch by `manager`; fields that it changed become its own."""
    before = managed_fields.without_managed_fields(old or {})
    after = managed_fields.without_managed_fields(new)
    managers = managed_fields.read(new if managed_fields.are_sent(new) else old or {})
    me = Manager(manager, "Update", after.get("apiVersion", ""), subresource)
    changed = field_set.changes(before, after, lists)
    mine = managers.pop(me, FieldSet()) - changed.removed
    others = _taken_over(managers, changed, force=True)
    mine |= managed_fields.ownable(changed.added | changed.modified)
    return managed_fields.written(after, {**others, me: mine}, old, active=me, now=now)


def _taken_over(others: Managers, changed: field_set.Changes, *, force: bool) -> Managers:
    """The other managers without what is no longer theirs; without `force`, a taken field is a conflict."""
    touched = changed.added | changed.modified
    conflicts = [(owner, path) for owner, fields in others.items() for path in fields & touched]
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    return {owner: fields - touched - changed.removed for owner, fields in others.items()}


def _merged(live: Any, applied: Any, lists: ListTypes) -> Any:
    if lists.is_granular_map(live) and lists.is_granular_map(applied):
        result = json_copy(live)
        for name, value in applied.items():
            result[name] = _merged(live[name], value, lists.entry(name)) if name in live else json_copy(value)
        return result
    if lists.is_keyed_list(live) and lists.is_keyed_list(applied):
        return _merged_list(live, applied, lists)
    return json_copy(applied)


def _merged_list(live: list[Any], applied: list[Any], lists: ListTypes) -> list[Any]:
    """Applied items in their order; items that are only live stay before the next applied one."""
    before, wanted = lists.grouped(live), lists.grouped(applied)
    remaining = list(before)
    result: list[Any] = []
    for element, items in wanted.items():
        while element in remaining or (element not in before and remaining and remaining[0] not in wanted):
            first = remaining.pop(0)
            if first not in wanted:
                result += json_copy(before[first])
        item = items[0]
        result.append(_merged(before[element][0], item, lists.items) if element in before else json_copy(item))
    for element in remaining:
        if element not in wanted:
            result += json_copy(before[element])
    return result


def _pruned(obj: dict[str, Any], last: FieldSet, owned: FieldSet, lists: ListTypes) -> dict[str, Any]:
    """Without the fields that the manager applied before, and that no manager owns now."""
    kept = field_set.with_parents(owned)
    gone = managed_fields.ownable(field_set.with_parents(last)) - kept
    tops = {path for path in gone if path[:-1] not in gone}
    pruned: dict[str, Any] = _without(obj, tops, lists, ()) if tops else obj
    return pruned


def _without(value: Any, gone: set[Path], lists: ListTypes, path: Path) -> Any:
    if lists.is_granular_map(value):
        return {
            name: _without(item, gone, lists.entry(name), (*path, f"f:{name}"))
            for name, item in value.items()
            if (*path, f"f:{name}") not in gone
        }
    if lists.is_keyed_list(value):
        elements = [(item, (*path, lists.item_element(item))) for item in value]
        return [_without(item, gone, lists.items, below) for item, below in elements if below not in gone]
    return value
