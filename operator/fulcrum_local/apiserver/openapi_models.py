"""OpenAPI schemas of built-in types, from the definitions that Kubernetes publishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.model_types import FieldType, Model, ModelField, fields_of

REFERENCE: Final = "#/components/schemas/"
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


def reference(name: str) -> Json:
    """A `$ref` to a schema of the document."""
    return {"$ref": REFERENCE + name}


def add_model(schemas: dict[str, Json], model: Model) -> str:
    """Add the schema of a model, and of all that it refers to; returns its name."""
    name = model.name
    if name in schemas:
        return name
    fields = fields_of(model)
    schema: Json = {"type": "object", "description": model.description}
    schemas[name] = schema
    required = [field_name for field_name, field in fields.items() if field.required]
    if required:
        schema["required"] = required
    schema["properties"] = {field_name: _property(schemas, field) for field_name, field in fields.items()}
    return name


def _property(schemas: dict[str, Json], field: ModelField) -> Json:
    schema = _type_schema(schemas, field.type)
    if "$ref" in schema:
        schema = {"allOf": [schema]}
    return {"description": field.description, **schema} if field.description else schema


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
