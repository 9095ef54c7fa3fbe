"""Objects of our kinds between JSON-like values and typed ones."""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.front_types import InferenceGateway, InferenceGatewaySpec, InferenceGatewayStatus
from fulcrum.api.names import API_VERSION, FRONT_KIND, FRONT_SHORT_NAME, KIND, SHORT_NAME
from fulcrum.api.types import InferenceCluster, InferenceClusterSpec, InferenceClusterStatus, ObjectMeta

_T = TypeVar("_T")

_WHERE: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_INDEX: Final = re.compile(r"\[[^]]*\]")
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def load_inference_cluster(document: dict[str, Any]) -> InferenceCluster:
    """The typed object of a document from the API server or a file; raises InvalidValueError naming the field.

    Defaults are filled in, unknown fields are ignored, and a null counts as absent, as the API server has it. A status
    that cannot be read (another version wrote it) is left empty: the operator writes it anew as a whole.
    """
    _check_kind(document, KIND)
    return InferenceCluster(
        metadata=_convert("metadata", document, ObjectMeta, SHORT_NAME),
        spec=_convert("spec", document, InferenceClusterSpec, SHORT_NAME),
        status=_status(document, InferenceClusterStatus),
    )


def load_inference_gateway(document: dict[str, Any]) -> InferenceGateway:
    """As `load_inference_cluster`, of an InferenceGateway."""
    _check_kind(document, FRONT_KIND)
    return InferenceGateway(
        metadata=_convert("metadata", document, ObjectMeta, FRONT_SHORT_NAME),
        spec=_convert("spec", document, InferenceGatewaySpec, FRONT_SHORT_NAME),
        status=_status(document, InferenceGatewayStatus),
    )


def _check_kind(document: dict[str, Any], kind: str) -> None:
    for field, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(field) != expected:
            raise InvalidValueError(
                field=field, value=document.get(field), problem=f"is not that of an {kind}", fix=f"write {expected}"
            )


def _status(document: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return _convert("status", document, kind, "")
    except InvalidValueError:
        return kind()


def to_dict(value: Any) -> Any:
    """JSON-like values of a typed one, in wire names; fields that are None are left out (unknown is absent)."""
    if isinstance(value, msgspec.Struct):
        fields = ((field.encode_name, getattr(value, field.name)) for field in _fields(type(value)))
        return {name: to_dict(item) for name, item in fields if item is not None}
    if isinstance(value, dict):
        return {to_dict(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def without_defaults(value: Any) -> Any:
    """JSON-like values of a typed one, in wire names; fields at their default are left out, at any depth."""
    if isinstance(value, (list, tuple)):
        return [without_defaults(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value.value if isinstance(value, Enum) else value
    return {
        field.encode_name: without_defaults(current)
        for field in _fields(type(value))
        if (current := getattr(value, field.name)) != field.default
    }


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Fields of a type: msgspec evaluates its annotations anew with each call, which took a third of a turn."""
    return msgspec.structs.fields(kind)


def _convert(field: str, document: dict[str, Any], kind: type[_T], short_name: str) -> _T:
    part = document.get(field) or {}
    try:
        return msgspec.convert(_without_nulls(part), kind)
    except msgspec.ValidationError as error:
        where = _WHERE.search(str(error))
        path = where[1] if where else ""
        full_path = f"{field}.{path}".rstrip(".")
        raise InvalidValueError(
            field=full_path,
            value=_value_at(part, path),
            problem=f"does not fit ({_WHERE.sub('', str(error))})",
            fix=f"see `kubectl explain {short_name}.{_INDEX.sub('', full_path)}`",
        ) from error


def _without_nulls(value: Any) -> Any:
    """Nulls mean something only in a Pod template, whose keys may be anything."""
    if isinstance(value, dict):
        return {
            key: item if key == "template" else _without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _value_at(part: Any, path: str) -> object:
    for name, index in _STEP.findall(path):
        try:
            part = part[name] if name else part[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return part
