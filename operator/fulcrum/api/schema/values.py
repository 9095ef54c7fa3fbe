"""Validation of values against a structural schema, without its CEL rules, in the words of an API server."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from fulcrum.api.schema import correlation, field_error, formats
from fulcrum.api.schema.field_error import FieldError, child, index
from fulcrum.api.schema.shape import as_resource, child_schema

Schema = dict[str, Any]
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),  # before int, which it is a kind of
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def errors_of(value: Any, schema: Schema, path: str, *, old: Any = None) -> list[FieldError]:
    """Everything that is wrong below `path`. What equals `old` was accepted before and is not complained about."""
    if old is not None and old == value:
        return []
    return list(_errors(value, schema, path, old))


def _errors(value: Any, schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    if value is None and schema.get("nullable"):
        return
    expected = _types(schema)
    if expected and not any(_is_of(value, each) for each in expected):
        yield field_error.type_invalid(path, ",".join(expected), type_name(value))
        return
    if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
        yield field_error.not_supported(path, value, schema["enum"])
    if isinstance(value, str):
        yield from _string_errors(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(value, schema, path)
    elif isinstance(value, list):
        yield from _list_errors(value, schema, path, old)
    elif isinstance(value, dict):
        yield from _object_errors(value, schema, path, old)
    yield from _composed_errors(value, schema, path)


def _types(schema: Schema) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def type_name(value: Any) -> str:
    """The JSON type of a value as schemas call it."""
    if value is None:
        return "null"
    return next(name for kind, name in _TYPE_NAMES if isinstance(value, kind))


def _is_of(value: Any, expected: str) -> bool:
    found = type_name(value)
    if expected == "number":
        return found in {"number", "integer"}
    return found == expected or (expected == "integer" and isinstance(value, float) and value.is_integer())


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _string_errors(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield field_error.too_long(path, schema["maxLength"])
    if "minLength" in schema and len(value) < schema["minLength"]:
        yield field_error.invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not go_pattern(schema["pattern"]).search(value):
        yield field_error.invalid(path, value, f"{path} in body should match '{schema['pattern']}'")
    if "format" in schema and not formats.matches(schema["format"], value):
        detail = f"{path} in body must be of type {schema['format']}: {json.dumps(value)}"
        yield field_error.invalid(path, value, detail)


@functools.lru_cache(maxsize=4096)
def go_pattern(pattern: str) -> re.Pattern[str]:
    """A Go regular expression: there `$` is the end of the text, never before a last line break."""
    parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    return re.compile("".join({"$": r"\Z", r"\z": r"\Z"}.get(part, part) for part in parts))


def _number_errors(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    maximum, minimum, step = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    if isinstance(value, int):  # as a real server compares integers: with the bound's whole part
        maximum, minimum = (None if bound is None else int(bound) for bound in (maximum, minimum))
    if maximum is not None:
        exclusive = bool(schema.get("exclusiveMaximum"))
        if value > maximum or (exclusive and value == maximum):
            bound = "less than" if exclusive else "less than or equal to"
            yield field_error.invalid(path, value, f"{path} in body should be {bound} {_bound(maximum)}")
    if minimum is not None:
        exclusive = bool(schema.get("exclusiveMinimum"))
        if value < minimum or (exclusive and value == minimum):
            bound = "greater than" if exclusive else "greater than or equal to"
            yield field_error.invalid(path, value, f"{path} in body should be {bound} {_bound(minimum)}")
    if step and (value / step) != int(value / step):
        yield field_error.invalid(path, value, f"{path} in body should be a multiple of {_bound(step)}")


def _bound(value: float) -> str:
    return field_error.number(value)


def _list_errors(value: list[Any], schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        yield field_error.too_many(path, len(value), schema["maxItems"])
    if "minItems" in schema and len(value) < schema["minItems"]:
        detail = f"{path} in body should have at least {schema['minItems']} items"
        yield field_error.invalid(path, len(value), detail)
    yield from _duplicate_errors(value, schema, path)
    items = schema.get("items")
    if items is not None:
        for position, item in enumerate(value):
            yield from errors_of(item, items, index(path, position), old=correlation.old_item(item, old, schema))


def _duplicate_errors(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    keys = correlation.map_keys(schema)
    if not keys and schema.get("x-kubernetes-list-type") != "set":
        return
    seen: set[str] = set()
    for position, item in enumerate(value):
        identity = correlation.item_key(item, keys, schema) if keys else item
        if keys and identity is None:
            continue
        text = json.dumps(identity, sort_keys=True)
        if text in seen:
            yield field_error.duplicate(index(path, position), identity)
        seen.add(text)


def _object_errors(value: dict[str, Any], schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    if schema.get("x-kubernetes-embedded-resource"):
        schema = {**as_resource(schema), "required": [*schema.get("required", ()), "apiVersion", "kind"]}
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        yield field_error.too_many(path, len(value), schema["maxProperties"])
    if "minProperties" in schema and len(value) < schema["minProperties"]:
        detail = f"{path} in body should have at least {schema['minProperties']} properties"
        yield field_error.invalid(path, len(value), detail)
    for name in dict.fromkeys(schema.get("required", ())):
        if name not in value:
            yield field_error.required(child(path, name))
    for name, item in value.items():
        if not path and name == "metadata":
            continue  # the API server checks it
        known = child_schema(schema, name)
        if known is not None:
            yield from errors_of(item, known, child(path, name), old=correlation.old_entry(name, old, schema))


def _composed_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    quoted = json.dumps(path)
    if "anyOf" in schema and not (schema.get("x-kubernetes-int-or-string") and _is_int_or_string_idiom(schema)):
        branches = [errors_of(value, each, path) for each in schema["anyOf"]]
        if all(branches):
            yield field_error.invalid(path, "", f"{quoted} must validate at least one schema (anyOf)")
            yield from min(branches, key=len)
    if "oneOf" in schema:
        branches = [errors_of(value, each, path) for each in schema["oneOf"]]
        valid = sum(not errors for errors in branches)
        text = f"{quoted} must validate one and only one schema (oneOf)."
        if valid == 0:
            yield field_error.invalid(path, "", f"{text} Found none valid")
            yield from min(branches, key=len)
        elif valid > 1:
            yield field_error.invalid(path, "", f"{text} Found {valid} valid alternatives")
    failures = [error for each in schema.get("allOf", ()) for error in errors_of(value, each, path)]
    if failures:
        yield field_error.invalid(path, "", f"{quoted} must validate all the schemas (allOf)")
        yield from failures
    if "not" in schema and not errors_of(value, schema["not"], path):
        yield field_error.invalid(path, "", f"{quoted} must not validate the schema (not)")


def _is_int_or_string_idiom(schema: Schema) -> bool:
    return {each.get("type") for each in schema["anyOf"]} == {"integer", "string"}
