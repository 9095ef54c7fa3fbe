"""Sets of field paths, and their form in `metadata.managedFields[].fieldsV1`.

A path is a tuple of elements as fieldsV1 writes them: `f:spec`, `k:{"name":"x"}`, `v:"x"`.
Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/ and sigs.k8s.io/structured-merge-diff.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fulcrum_local.objects.list_types import ListTypes

Path = tuple[str, ...]
FieldSet = frozenset[Path]


class Changes(NamedTuple):
    """How one object differs from another."""

    added: FieldSet
    modified: FieldSet
    removed: FieldSet


def from_v1(fields: dict[str, Any]) -> FieldSet:
    """Read fieldsV1."""
    return frozenset(_from_v1(fields, ()))


def _from_v1(fields: dict[str, Any], path: Path) -> Iterator[Path]:
    if path and (not fields or "." in fields):
        yield path
    for element, below in fields.items():
        if element != ".":
            yield from _from_v1(below, (*path, element))


def to_v1(fields: FieldSet) -> dict[str, Any]:
    """Write fieldsV1."""
    root: dict[str, Any] = {}
    for path in sorted(fields):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return _without_leaf_dots(root)


def _without_leaf_dots(node: dict[str, Any]) -> dict[str, Any]:
    if node.keys() == {"."}:
        return {}
    return {element: _without_leaf_dots(below) if element != "." else {} for element, below in node.items()}


def fields_of(value: Any, lists: ListTypes) -> FieldSet:
    """The fields that an applied configuration claims."""
    return frozenset(_fields_of(value, lists, ()))


def _fields_of(value: Any, lists: ListTypes, path: Path) -> Iterator[Path]:
    if lists.is_granular_map(value):
        for name, item in value.items():
            below = (*path, f"f:{name}")
            if item in ({}, []) or lists.has_free_keys:
                yield below
            yield from _fields_of(item, lists.entry(name), below)
    elif lists.is_keyed_list(value):
        for element, items in lists.grouped(value).items():
            yield (*path, element)
            if isinstance(items[0], dict):
                yield from _fields_of(items[0], lists.items, (*path, element))
    else:
        yield path


def duplicate_item(value: Any, lists: ListTypes, path: Path = ()) -> Path | None:
    """The first item that is in a keyed list twice; None when there is none."""
    below: list[tuple[Any, ListTypes, Path]] = []
    if lists.is_granular_map(value):
        below = [(item, lists.entry(name), (*path, f"f:{name}")) for name, item in value.items()]
    elif lists.is_keyed_list(value):
        for element, items in lists.grouped(value).items():
            if len(items) > 1:
                return (*path, element)
            below.append((items[0], lists.items, (*path, element)))
    return next((found for each in below if (found := duplicate_item(*each))), None)


def changes(old: Any, new: Any, lists: ListTypes) -> Changes:
    """How `new` differs from `old`; a new or removed container counts with everything in it."""
    comparison = _Comparison()
    comparison.compare(old, new, lists, ())
    return Changes(frozenset(comparison.added), frozenset(comparison.modified), frozenset(comparison.removed))


class _Comparison:
    def __init__(self) -> None:
        self.added: set[Path] = set()
        self.modified: set[Path] = set()
        self.removed: set[Path] = set()

    def compare(self, old: Any, new: Any, lists: ListTypes, path: Path) -> None:
        if old == new and _same_types(old, new):
            return
        if lists.is_granular_map(old) and lists.is_granular_map(new):
            for name in {**old, **new}:
                before = [old[name]] if name in old else []
                after = [new[name]] if name in new else []
                self._compare_child(before, after, lists.entry(name), (*path, f"f:{name}"))
        elif lists.is_keyed_list(old) and lists.is_keyed_list(new):
            before_items, after_items = lists.grouped(old), lists.grouped(new)
            for element in {**before_items, **after_items}:
                before, after = before_items.get(element, []), after_items.get(element, [])
                self._compare_child(before, after, lists.items, (*path, element))
        else:
            found = _everything(new, lists, path)
            self.modified |= found
            self.removed |= _everything(old, lists, path) - found

    def _compare_child(self, before: list[Any], after: list[Any], lists: ListTypes, path: Path) -> None:
        if not before:
            self.added |= _everything(after[0], lists, path)
        elif not after:
            self.removed |= _everything(before[0], lists, path)
        elif len(before) == len(after) == 1:
            self.compare(before[0], after[0], lists, path)
        elif before != after:  # a key that occurs more than once is compared as a whole
            self.modified.add(path)


def _same_types(old: Any, new: Any) -> bool:
    """Python's 1 == True == 1.0; on the wire a boolean is no number."""
    return isinstance(old, dict | list) or isinstance(old, bool) == isinstance(new, bool)


def _everything(value: Any, lists: ListTypes, path: Path) -> set[Path]:
    return {path, *_containers(value, lists, path), *_fields_of(value, lists, path)}


def _containers(value: Any, lists: ListTypes, path: Path) -> Iterator[Path]:
    if lists.is_granular_map(value):
        yield path
        for name, item in value.items():
            yield from _containers(item, lists.entry(name), (*path, f"f:{name}"))
    elif lists.is_keyed_list(value):
        yield path
        for element, items in lists.grouped(value).items():
            yield from _containers(items[0], lists.items, (*path, element))


def with_parents(fields: FieldSet) -> FieldSet:
    """The set and every field that one of its members is in."""
    return frozenset(path[:length] for path in fields for length in range(1, len(path) + 1))


def text(path: Path) -> str:
    """A path as a conflict prints it: `.spec.containers[name="x"].image`."""
    parts = []
    for element in path:
        kind, rest = element[0], element[2:]
        if kind == "f":
            parts.append(f".{rest}")
        elif kind == "k":
            keys = ",".join(f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items())
            parts.append(f"[{keys}]")
        else:
            parts.append(f"[={rest}]")
    return "".join(parts)
