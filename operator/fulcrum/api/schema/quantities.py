"""Kubernetes quantities: `500m`, `64Gi`, `1e3`, and the one form in which a server stores each.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation

_QUANTITY = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?$")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SUFFIX = {
    **{suffix: Decimal(1).scaleb(exponent) for exponent, suffix in _DECIMAL.items()},
    **{suffix: Decimal(1024**power) for power, suffix in enumerate(_BINARY) if suffix},
}
_NANO = Decimal("1e-9")
INVALID = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def parse_quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for; raises ValueError."""
    return _parsed(text)[0]


def canonical_quantity(text: str) -> str:
    """The form that a server stores and returns: `1000m` is `1`, `0.5Gi` is `512Mi`. Errors: ValueError."""
    value, suffix = _parsed(text)
    value = value.quantize(_NANO, rounding=ROUND_CEILING) if value % _NANO else value
    if not value:
        return "0"
    if suffix in _BINARY[1:] and abs(value) >= 1024 and value == value.to_integral_value():
        return _binary(int(value))
    digits, exponent = _decimal(value)
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        return f"{digits}e{exponent}" if exponent else str(digits)
    while exponent not in _DECIMAL:
        digits, exponent = digits * 1000, exponent - 3
    return f"{digits}{_DECIMAL[exponent]}"


def _parsed(text: str) -> tuple[Decimal, str]:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(INVALID)
    number, suffix = match[1], match[2] or ""
    try:
        if suffix in _SUFFIX:
            return Decimal(number) * _SUFFIX[suffix], suffix
        return Decimal(number + suffix), suffix
    except InvalidOperation as error:
        raise ValueError(f"unable to parse quantity: {text}") from error


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power + 1 < len(_BINARY):
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


def _decimal(value: Decimal) -> tuple[int, int]:
    """Digits and an exponent that is a multiple of three, with as few digits as that allows."""
    exponent = -9
    digits = int(value.scaleb(9))
    while digits % 1000 == 0:
        digits, exponent = digits // 1000, exponent + 3
    return digits, exponent
