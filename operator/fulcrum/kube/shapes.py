"""Whether a value has the shape of a type of Kubernetes, as its Go structs would decode it: types and list keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

_LIST: Final = re.compile(r"[Ll]ist\[(.*)\]")
_MAP: Final = re.compile(r"[Dd]ict[(\[]str, (.*)[)\]]")
_AMOUNTS: Final = frozenset(("requests", "limits", "sizeLimit", "divisor", "overhead", "capacity"))
"""Fields of type Quantity, which may be a number, too; the package's models call them text."""
_NUMBERS: Final[dict[str, tuple[type, ...]]] = {"int": (int,), "float": (int, float), "bool": (bool,)}
_MOST_BYTES: Final = 262_144
"""Longest text in a value: that of all annotations of an object together."""


def misshapen(value: Any, type_: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) of what Kubernetes could not decode as its `type_`, such as `V1PodTemplateSpec`.

    A null is allowed as a member of an object: it means that the member is absent.
    """
    if (found := _LIST.fullmatch(type_)) is not None:
        if not isinstance(value, list):
            yield path, f"is {_kind(value)}, and a list is needed"
            return
        for number, item in enumerate(value):
            yield from misshapen(item, found[1], f"{path}[{number}]")
    elif (found := _MAP.fullmatch(type_)) is not None:
        yield from _members(value, dict.fromkeys(value, found[1]) if isinstance(value, dict) else {}, path)
    elif type_ == "object":
        # Free-form, but for the amounts and ports that are numbers or text.
        if isinstance(value, bool | list | dict | None):
            yield path, f"is {_kind(value)}, and text or a number is needed"
    elif type_ in ("str", "datetime", "file"):
        if not isinstance(value, str):
            yield path, f"is {_kind(value)}, and text is needed"
        elif len(value) > _MOST_BYTES:
            yield path, f"is longer than {_MOST_BYTES} characters"
    elif type_ in _NUMBERS:
        wrong_kind = not isinstance(value, _NUMBERS[type_]) or (isinstance(value, bool) and type_ != "bool")
        if wrong_kind or (isinstance(value, int) and abs(value) >= 2**63):
            yield path, f"is {_kind(value)}, and {'true or false' if type_ == 'bool' else 'a number'} is needed"
    else:
        yield from _members(value, _fields(type_), path)


def _members(value: Any, types: dict[str, str], path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield path, f"is {_kind(value)}, and an object is needed"
        return
    for name, item in value.items():
        if item is not None and name in types:
            type_ = re.sub(r"\bstr([)\]])$", r"object\1", types[name]) if name in _AMOUNTS else types[name]
            yield from misshapen(item, "object" if name in _AMOUNTS and type_ == "str" else type_, f"{path}.{name}")


def _fields(type_: str) -> dict[str, str]:
    """Types of a model's fields by their names on the wire. What the API server does not know, it drops."""
    from kubernetes.aio.client import models

    model = getattr(models, type_)
    return {wire: model.openapi_types[name] for name, wire in model.attribute_map.items()}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
