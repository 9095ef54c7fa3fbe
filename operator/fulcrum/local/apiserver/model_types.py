"""The types of built-in kinds, read from lightkube's generated models: decoding objects strictly.

A real server decodes JSON into Go structs: fields that the struct lacks are reported (and dropped), wrong types are
an error. The models carry the same structs, so this is the same decoding without schemas of ours.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib
import types
import typing
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum.local.apiserver.errors import Json, bad_request

_STRING_MAPS: Final = frozenset(
    {"labels", "annotations", "matchLabels", "nodeSelector", "data", "stringData", "binaryData", "selector"}
)
_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "capacity", "allocatable", "hard", "overhead"})
_MODULES: Final = {
    "": "core", "meta": "meta", "apps": "apps", "autoscaling": "autoscaling", "policy": "policy",
    "rbac.authorization.k8s.io": "rbac",
    "coordination.k8s.io": "coordination", "discovery.k8s.io": "discovery", "events.k8s.io": "events",
    "apiextensions.k8s.io": "apiextensions", "authentication.k8s.io": "authentication",
    "authorization.k8s.io": "authorization",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """Type of one field: `shape` is string, integer, number, boolean, time, int_or_string, any, map, list or object."""

    shape: str
    item: FieldType | None = None
    model: type[msgspec.Struct] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelField:
    """One field of a model."""

    type: FieldType
    required: bool


def model_of(group: str, version: str, kind: str) -> type[msgspec.Struct] | None:
    """The lightkube model of a built-in kind, or None."""
    module_name = _MODULES.get(group)
    if module_name is None or version != "v1":
        return None
    module = importlib.import_module(f"lightkube.models.{module_name}_{version}")
    model = getattr(module, kind, None)
    return model if isinstance(model, type) and issubclass(model, msgspec.Struct) else None


@functools.cache
def fields_of(model: type[msgspec.Struct]) -> dict[str, ModelField]:
    """Fields of a model by their name on the wire."""
    return {
        field.encode_name: ModelField(type=_field_type(field.encode_name, field.type), required=field.required)
        for field in msgspec.structs.fields(model)
    }


def _field_type(name: str, annotation: Any) -> FieldType:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        if set(present) == {int, str}:
            return FieldType(shape="int_or_string")
        return _field_type(name, present[0])
    if origin is list:
        return FieldType(shape="list", item=_field_type("", arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return FieldType(shape="object", model=annotation)
    if origin is dict or annotation in (dict, typing.Dict):  # noqa: UP006
        return _map_type(name)
    shape = {str: "string", int: "integer", float: "number", bool: "boolean", dt.datetime: "time"}
    return FieldType(shape=shape.get(annotation, "any"))


def _map_type(name: str) -> FieldType:
    if name in _STRING_MAPS:
        return FieldType(shape="map", item=FieldType(shape="string"))
    if name in _QUANTITY_MAPS:
        return FieldType(shape="map", item=FieldType(shape="quantity"))
    return FieldType(shape="map", item=FieldType(shape="any"))


def decode_object(obj: Json, model: type[msgspec.Struct], kind: str, version: str) -> tuple[Json, list[str]]:
    """`obj` without nulls and unknown fields, and the paths of the unknown ones; 400 for a wrong type."""
    unknown: list[str] = []
    try:
        decoded = _decode_struct(obj, model, "", unknown)
    except _TypeMismatchError as mismatch:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {mismatch}') from None
    return decoded, unknown


class _TypeMismatchError(Exception):
    def __init__(self, path: str, value: object, expected: str) -> None:
        found = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        super().__init__(f"json: cannot unmarshal {found} into Go struct field {path} of type {expected}")


def _decode_struct(value: object, model: type[msgspec.Struct], path: str, unknown: list[str]) -> Json:
    if not isinstance(value, dict):
        raise _TypeMismatchError(path, value, model.__name__)
    fields = fields_of(model)
    decoded: Json = {}
    for name, content in value.items():
        field = fields.get(name)
        inner = f"{path}.{name}" if path else name
        if field is None:
            unknown.append(inner)
        elif content is not None:
            value = _decode(content, field.type, inner, unknown)
            # An empty list or map and none are the same in Go, and written as none.
            if value not in ([], {}) or field.required or field.type.item is None or field.type.item.shape == "any":
                decoded[name] = value
    return decoded


def _decode(value: Any, expected: FieldType, path: str, unknown: list[str]) -> Any:
    if expected.model is not None:
        return _decode_struct(value, expected.model, path, unknown)
    if expected.item is not None:
        item = expected.item
        if expected.shape == "list":
            if not isinstance(value, list):
                raise _TypeMismatchError(path, value, f"[]{_go_name(item)}")
            return [_decode(entry, item, f"{path}[{index}]", unknown) for index, entry in enumerate(value)]
        if not isinstance(value, dict):
            raise _TypeMismatchError(path, value, f"map[string]{_go_name(item)}")
        return {key: _decode(entry, item, f"{path}.{key}", unknown) for key, entry in value.items()}
    return _decode_scalar(value, expected, path)


def _decode_scalar(value: Any, expected: FieldType, path: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match expected.shape:
        case "string" | "time":
            accepted = isinstance(value, str)
        case "quantity":
            accepted = isinstance(value, str) or is_number
            value = str(value)
        case "integer":
            accepted = is_number and int(value) == value
            value = int(value) if accepted else value
        case "number":
            accepted = is_number
        case "boolean":
            accepted = isinstance(value, bool)
        case "int_or_string":
            accepted = isinstance(value, str) or (is_number and isinstance(value, int))
        case _:
            accepted = True
    if not accepted:
        raise _TypeMismatchError(path, value, _go_name(expected))
    return value


def _go_name(expected: FieldType) -> str:
    if expected.model is not None:
        return expected.model.__name__
    names = {"integer": "int32", "number": "float64", "boolean": "bool", "time": "time.Time", "any": "interface {}"}
    return names.get(expected.shape, "string")
