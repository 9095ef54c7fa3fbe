"""Defaulting, pruning and unknown fields of a structural schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fulcrum.api.schema.field_error import child, index
from fulcrum.api.schema.json_copy import json_copy

Schema = dict[str, Any]
_RESOURCE_PROPERTIES: Schema = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
"""Every resource has these, declared or not; the API server itself checks metadata, of which rules see the names."""


def as_resource(schema: Schema) -> Schema:
    """The schema of an object that is a resource, at the root or embedded."""
    return {**schema, "properties": {**schema.get("properties", {}), **_RESOURCE_PROPERTIES}}


def child_schema(schema: Schema, name: str) -> Schema | None:
    """The schema of an object's entry; None when it is not known, `{}` when anything goes."""
    properties = schema.get("properties", {})
    if name in properties:
        found: Schema = properties[name]
        return found
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return additional
    if additional is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return None


def defaulted(value: Any, schema: Schema) -> Any:
    """A copy of `value` with the defaults of `schema`."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [defaulted(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, item in value.items():
        known = child_schema(schema, name)
        if known is None:
            result[name] = json_copy(item)
        elif item is not None or known.get("nullable") or name not in schema.get("properties", {}):
            result[name] = defaulted(item, known)
    for name, known in schema.get("properties", {}).items():
        if name not in result and "default" in known:
            result[name] = defaulted(json_copy(known["default"]), known)
    return result


def pruned(value: Any, schema: Schema) -> Any:
    """A copy of `value` without unknown fields."""
    if isinstance(value, list):
        items = schema.get("items")
        return [pruned(item, items) for item in value] if items is not None else json_copy(value)
    if not isinstance(value, dict):
        return value
    schema = _embedded(schema)
    keeps_unknown = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    result: dict[str, Any] = {}
    for name, item in value.items():
        known = child_schema(schema, name)
        if known is not None:
            result[name] = pruned(item, known)
        elif keeps_unknown:
            result[name] = json_copy(item)
    return result


def unknown_fields(value: Any, schema: Schema, path: str) -> list[str]:
    """Paths that `pruned` removes, such as `spec.pools[0].colour`."""
    found: list[str] = []
    if isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            found += unknown_fields(item, schema["items"], f"{path}[{position}]")
    if not isinstance(value, dict):
        return found
    schema = _embedded(schema)
    for name, item in value.items():
        known = child_schema(schema, name)
        here = f"{path}.{name}" if path else name
        if known is not None:
            found += unknown_fields(item, known, here)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.append(here)
    return found


def _embedded(schema: Schema) -> Schema:
    return as_resource(schema) if schema.get("x-kubernetes-embedded-resource") else schema


RULES = "x-kubernetes-validations"


def has_rules(schema: Schema) -> bool:
    """Whether any node of the schema has a CEL rule."""
    return any(True for _ in rules_of(schema, ""))


def rules_of(schema: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every CEL rule of the schema, with where it stands."""
    for position, rule in enumerate(schema.get(RULES, ())):
        yield index(child(path, RULES), position), rule
    for name, known in schema.get("properties", {}).items():
        yield from rules_of(known, child(path, f"properties[{name}]"))
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from rules_of(schema[part], child(path, part))
