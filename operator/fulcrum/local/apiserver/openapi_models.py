"""OpenAPI schemas of built-in types, from lightkube's models and the descriptions in their docstrings."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fulcrum.local.apiserver.errors import Json
from fulcrum.local.apiserver.model_types import FieldType, ModelField, fields_of

REFERENCE: Final = "#/components/schemas/"
_PACKAGES: Final = {
    "meta_v1": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "apiextensions_v1": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_TIME: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.Time"
_SCALARS: Final[Mapping[str, Json]] = {
    _QUANTITY: {
        "description": "Quantity is a fixed-point representation of a number, such as `500m` or `64Gi`.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
    _INT_OR_STRING: {
        "description": "IntOrString is a type that can hold an int32 or a string.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    _TIME: {"description": "Time in RFC 3339.", "type": "string", "format": "date-time"},
}
_NAMED: Final = {"quantity": _QUANTITY, "int_or_string": _INT_OR_STRING, "time": _TIME}
_PLAIN: Final[Mapping[str, Json]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "map": {"type": "object"},
    "any": {},
}
_PARAMETER: Final = re.compile(r"^\s*\* \*\*(?P<name>[^*]+)\*\* ``[^`]*``(?: - (?P<text>.*))?$")


def schema_name(model: type[msgspec.Struct]) -> str:
    """The name of a model's schema: `io.k8s.api.core.v1.Pod`."""
    module = model.__module__.rpartition(".")[2]
    package = _PACKAGES.get(module)
    if package is None:
        group, _, version = module.rpartition("_")
        package = f"io.k8s.api.{group}.{version}"
    return f"{package}.{model.__name__}"


def reference(name: str) -> Json:
    """A `$ref` to a schema of the document."""
    return {"$ref": REFERENCE + name}


def add_model(schemas: dict[str, Json], model: type[msgspec.Struct]) -> str:
    """Add the schema of a model, and of all that it refers to; returns its name."""
    name = schema_name(model)
    if name in schemas:
        return name
    description, texts = _documentation(model)
    fields = fields_of(model)
    schema: Json = {"type": "object", "description": description}
    schemas[name] = schema
    required = [field_name for field_name, field in fields.items() if field.required]
    if required:
        schema["required"] = required
    schema["properties"] = {
        field_name: _property(schemas, field, texts.get(field_name, "")) for field_name, field in fields.items()
    }
    return name


def _property(schemas: dict[str, Json], field: ModelField, description: str) -> Json:
    schema = _type_schema(schemas, field.type)
    if "$ref" in schema:
        schema = {"allOf": [schema]}
    return {"description": description, **schema} if description else schema


def _type_schema(schemas: dict[str, Json], field_type: FieldType) -> Json:
    if field_type.model is not None:
        return reference(add_model(schemas, field_type.model))
    if field_type.shape in _NAMED:
        name = _NAMED[field_type.shape]
        schemas.setdefault(name, dict(_SCALARS[name]))
        return reference(name)
    if field_type.item is not None:
        item = _type_schema(schemas, field_type.item)
        if field_type.shape == "list":
            return {"type": "array", "items": item}
        return {"type": "object", "additionalProperties": item}
    return dict(_PLAIN[field_type.shape])


@functools.cache
def _documentation(model: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Description of a model, and of each of its fields."""
    head, _, parameters = (model.__doc__ or "").partition("**parameters**")
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in parameters.splitlines():
        match = _PARAMETER.match(line)
        if match:
            current = texts.setdefault(match["name"], [])
            current.append(match["text"] or "")
        elif line.strip():
            current.append(line.strip())
    return _joined(head.splitlines()), {name: _joined(lines) for name, lines in texts.items()}


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def in_version_2(value: Any) -> Any:
    """A schema of OpenAPI v3 as v2 writes it: other references, and none of the keywords that v2 lacks."""
    if isinstance(value, list):
        return [in_version_2(item) for item in value]
    if not isinstance(value, dict):
        return value
    converted: Json = {}
    for key, content in value.items():
        if key == "$ref" and isinstance(content, str):
            converted[key] = content.replace(REFERENCE, "#/definitions/")
        elif key == "allOf" and isinstance(content, list) and len(content) == 1:
            converted |= in_version_2(content[0])
        elif key in ("oneOf", "anyOf", "not", "nullable"):
            if key == "oneOf":
                converted.setdefault("type", "string")
        else:
            converted[key] = in_version_2(content)
    return converted
