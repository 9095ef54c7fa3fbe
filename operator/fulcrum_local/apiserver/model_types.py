"""The types of built-in kinds, read from the definitions that Kubernetes publishes: decoding objects strictly.

A real server decodes JSON into Go structs: fields that the struct lacks are reported (and dropped), wrong types are
an error. `builtin_types.json` (see `requirements/kubernetes_types.py`) has those structs as OpenAPI definitions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec

from fulcrum_local.apiserver.errors import Json, bad_request

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_NAMED_SHAPES: Final = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int_or_string",
    f"{_META}.Time": "time",
    f"{_META}.MicroTime": "time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One published definition of an object: `io.k8s.api.core.v1.Pod`."""

    name: str

    @property
    def kind(self) -> str:
        """The name without its package."""
        return self.name.rpartition(".")[2]

    @property
    def description(self) -> str:
        """What the definition says about itself."""
        return str(_definitions()[self.name].get("description", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """Type of one field: string, integer, number, boolean, time, quantity, int_or_string, any, map, list or object."""

    shape: str
    item: FieldType | None = None
    model: Model | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelField:
    """One field of a model."""

    type: FieldType
    required: bool
    description: str


@functools.cache
def _definitions() -> dict[str, Json]:
    decoded: dict[str, Json] = msgspec.json.decode(files(__package__).joinpath("builtin_types.json").read_bytes())
    return decoded


@functools.cache
def _by_kind() -> dict[tuple[str, str, str], Model]:
    return {
        (group, version, kind): Model(name=name)
        for name, definition in _definitions().items()
        for group, version, kind in definition.get("kinds", ())
    }


def model_of(group: str, version: str, kind: str) -> Model | None:
    """The model of a built-in kind, or None; "meta" is the group of what is common to all (ObjectMeta ...)."""
    if group == "meta":
        name = f"{_META}.{kind}"
        return Model(name=name) if name in _definitions() else None
    return _by_kind().get((group, version, kind))


@functools.cache
def fields_of(model: Model) -> dict[str, ModelField]:
    """Fields of a model by their name on the wire."""
    definition = _definitions()[model.name]
    required = frozenset(definition.get("required") or ())
    return {
        name: ModelField(type=_field_type(schema), required=name in required, description=schema.get("description", ""))
        for name, schema in definition["properties"].items()
    }


def _field_type(schema: Json) -> FieldType:
    name = schema.get("$ref")
    if name is not None:
        if name in _NAMED_SHAPES:
            return FieldType(shape=_NAMED_SHAPES[name])
        referred = _definitions()[name]
        # A definition without fields is free-form: a map (FieldsV1), or any value at all (JSON).
        return FieldType(shape="object", model=Model(name=name)) if "properties" in referred else _field_type(referred)
    match schema.get("type"):
        case "array":
            return FieldType(shape="list", item=_field_type(schema["items"]))
        case "object":
            return FieldType(shape="map", item=_field_type(schema.get("additionalProperties") or {}))
        case None:
            return FieldType(shape="any")
        case scalar:
            return FieldType(shape=scalar)


def decode_object(obj: Json, model: Model, kind: str, version: str) -> tuple[Json, list[str]]:
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


def _decode_struct(value: object, model: Model, path: str, unknown: list[str]) -> Json:
    if not isinstance(value, dict):
        raise _TypeMismatchError(path, value, model.kind)
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
        return expected.model.kind
    names = {"integer": "int32", "number": "float64", "boolean": "bool", "time": "time.Time", "any": "interface {}"}
    return names.get(expected.shape, "string")
