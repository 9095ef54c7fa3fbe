"""Kubernetes quantities: `500m`, `64Gi`, `1e3`, and the one form in which a server stores each.

Read as Go's `resource.Quantity` does, by the grammar that its documentation gives: what is finer than a billionth is
rounded up, away from zero. https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from fulcrum.api.errors import InvalidValueError

PATTERN: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
"""Amounts of memory in our own objects: no sign, no exponent, nothing smaller than a byte."""
MAX_LENGTH: Final = 32

_QUANTITY: Final = re.compile(
    r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?"
)
_DECIMAL: Final = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENTS: Final = {suffix: exponent for exponent, suffix in _DECIMAL.items()}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANOS: Final = 10**9
_MOST_BINARY: Final = (2**63 - 1) * _NANOS
"""Go caps amounts with a binary suffix."""
_MOST_EXPONENT: Final = 100
"""Of ten, either way. Go takes more, but no resource is so large, and a number of a billion digits fills the memory."""
INVALID: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def parse_quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for; raises ValueError."""
    return Decimal(f"{_parsed(text)[0]}e-9")


def canonical_quantity(text: str) -> str:
    """The form that a server stores and returns: `1000m` is `1`, `0.5Gi` is `512Mi`. Errors: ValueError."""
    nanos, suffix = _parsed(text)
    if not nanos:
        return "0"
    if suffix in _BINARY[1:] and abs(nanos) >= 1024 * _NANOS and nanos % _NANOS == 0:
        return _binary(nanos // _NANOS)
    digits, exponent = nanos, -9
    while digits % 1000 == 0:
        digits, exponent = digits // 1000, exponent + 3
    if _is_exponent(suffix):
        return f"{digits}e{exponent}" if exponent else str(digits)
    while exponent not in _DECIMAL:
        digits, exponent = digits * 1000, exponent - 3
    return f"{digits}{_DECIMAL[exponent]}"


def number_of_bytes(text: str) -> int:
    """Bytes of an amount that matches `PATTERN`, a fraction of a byte rounded up; raises InvalidValueError."""
    if len(text) > MAX_LENGTH or text.endswith("\n") or re.fullmatch(PATTERN, text) is None:
        raise InvalidValueError(
            value=text,
            problem="is not an amount of memory",
            fix="write a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Gi",
        )
    return -(-_billionths(text)[0] // _NANOS)


def same_amount(one: object, other: object) -> bool:
    """Whether two quantities are equal, however they are written: an API server stores `1024Mi` as `1Gi`."""
    if one == other:
        return True
    amount = _amount(one)
    return amount is not None and amount == _amount(other)


def is_more(one: object, other: object) -> bool:
    """Whether a quantity is larger than another one; False where either is none."""
    amount, bound = _amount(one), _amount(other)
    return amount is not None and bound is not None and amount > bound


def three_digits(figure: float) -> float:
    """A measured figure as it is published: the fourth digit is noise, and each change of it would be a write."""
    return float(f"{figure:.3g}")


def _amount(value: object) -> Decimal | None:
    try:
        return parse_quantity(str(value))
    except ValueError:
        return None


def _parsed(text: str) -> tuple[int, str]:
    """Billionths as Go keeps them, and the suffix."""
    nanos, suffix = _billionths(text)
    if suffix in _BINARY[1:]:
        nanos = max(min(nanos, _MOST_BINARY), -_MOST_BINARY)
    return nanos, suffix


def _billionths(text: str) -> tuple[int, str]:
    """How many, rounded away from zero, and the suffix."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(INVALID)
    sign, whole, fraction, only_fraction, suffix = match.groups(default="")
    fraction = fraction or only_fraction
    nanos, exponent = int(f"{whole}{fraction}"), -len(fraction)
    if suffix in _BINARY:
        nanos *= _NANOS * 1024 ** _BINARY.index(suffix)
    else:
        exponent += 9 + _exponent(text, suffix)
    nanos = nanos * 10**exponent if exponent >= 0 else -(-nanos // 10**-exponent)
    return -nanos if sign == "-" else nanos, suffix


def _exponent(text: str, suffix: str) -> int:
    if not _is_exponent(suffix):
        return _EXPONENTS[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _MOST_EXPONENT:
        raise ValueError(f"unable to parse quantity: {text}")
    return exponent


def _is_exponent(suffix: str) -> bool:
    return suffix[:1] in {"e", "E"} and suffix not in _EXPONENTS


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power + 1 < len(_BINARY):
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"
