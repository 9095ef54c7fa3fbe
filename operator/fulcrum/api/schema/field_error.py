"""What is wrong with one field, in the words of a Kubernetes API server.

Source: apimachinery `field.Error` (how it prints) and `metav1.CauseType` (the reasons).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

ROOT = "<nil>"
"""How an API server prints the path of the object itself."""


class FieldError(msgspec.Struct, frozen=True):
    """One cause of a 422: path such as `spec.pools[0].workers`, reason such as `FieldValueInvalid`, and the text."""

    path: str
    reason: str
    message: str

    def __str__(self) -> str:
        """The line that kubectl prints for it."""
        return f"{self.path}: {self.message}"


def child(path: str, name: str) -> str:
    """The path of a property."""
    return f"{path}.{name}" if path else name


def index(path: str, position: int) -> str:
    """The path of a list's item."""
    return f"{path}[{position}]"


def required(path: str, detail: str = "") -> FieldError:
    """The field must be there."""
    return FieldError(path or ROOT, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """The value breaks a rule."""
    return FieldError(path or ROOT, "FieldValueInvalid", f"Invalid value: {_shown(value)}{detail}")


def type_invalid(path: str, expected: str, found: str) -> FieldError:
    """The value is of another JSON type."""
    detail = f'{path or ""} in body must be of type {expected}: "{found}"'
    return FieldError(path or ROOT, "FieldValueTypeInvalid", f'Invalid value: "{found}": {detail}')


def not_supported(path: str, value: Any, supported: list[Any]) -> FieldError:
    """The value is none of an enumeration."""
    listed = ", ".join(json.dumps(str(each), ensure_ascii=False) for each in supported)
    return FieldError(
        path or ROOT, "FieldValueNotSupported", f"Unsupported value: {printed(value)}: supported values: {listed}"
    )


def duplicate(path: str, value: Any) -> FieldError:
    """The item is already in a set or map."""
    return FieldError(path or ROOT, "FieldValueDuplicate", f"Duplicate value: {printed(value)}")


def _shown(value: Any) -> str:
    """A value in front of what is wrong with it; objects and lists are left out, as a server does since 1.35."""
    return "" if isinstance(value, (dict, list)) else f"{printed(value)}: "


def forbidden(path: str, detail: str) -> FieldError:
    """The field must not be there, or not be changed."""
    return FieldError(path or ROOT, "FieldValueForbidden", f"Forbidden: {detail}")


def too_long(path: str, longest: int) -> FieldError:
    """The string has too many characters."""
    return FieldError(path or ROOT, "FieldValueTooLong", f"Too long: may not be more than {longest} bytes")


def too_many(path: str, found: int, most: int) -> FieldError:
    """The list or map has too many entries."""
    return FieldError(path or ROOT, "FieldValueTooMany", f"Too many: {found}: must have at most {most} items")


def printed(value: Any) -> str:
    """A value as an error shows it."""
    if value is None:
        return '"null"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def number(value: float) -> str:
    """A number as Go's `%v` prints it: 1, 1.5, 1e+06."""
    if isinstance(value, int):
        return str(value)
    exact = Decimal(repr(value))
    if value == 0 or -4 <= exact.adjusted() < 6:
        return f"{exact.normalize():f}"
    mantissa = exact.normalize().scaleb(-exact.adjusted())
    return f"{mantissa.normalize():f}e{exact.adjusted():+03d}"
