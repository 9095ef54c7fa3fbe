"""Amounts as Kubernetes writes them: memory (`64Gi`, `512Mi`, `1.5G`), and CPU (`2`, `500m`)."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Final

from fulcrum.api.errors import InvalidValueError

PATTERN: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
MAX_LENGTH: Final = 32

_BYTES_PER_UNIT: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_SPLIT: Final = re.compile(r"([0-9.]+)([A-Za-z]*)")


def number_of_bytes(text: str) -> int:
    """Bytes of a quantity, a fraction of a byte rounded up as Kubernetes does; raises InvalidValueError."""
    if len(text) > MAX_LENGTH or text.endswith("\n") or re.fullmatch(PATTERN, text) is None:
        raise InvalidValueError(
            value=text,
            problem="is not an amount of memory",
            fix="write a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Gi",
        )
    parts = _SPLIT.fullmatch(text)
    assert parts is not None
    return ceil(Fraction(parts[1]) * _BYTES_PER_UNIT[parts[2]])


_SMALLER_UNITS: Final[dict[str, Fraction | int]] = {
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}


def three_digits(figure: float) -> float:
    """A measured figure as it is published: the fourth digit is noise, and each change of it would be a write."""
    return float(f"{figure:.3g}")


def same_amount(one: object, other: object) -> bool:
    """Whether two quantities are equal, however they are written: an API server stores `1024Mi` as `1Gi`."""
    return one == other or (
        isinstance(one, str | int) and isinstance(other, str | int) and _amount(str(one)) == _amount(str(other))
    )


def is_more(one: object, other: object) -> bool:
    """Whether a quantity is larger than another one; False where either is none."""
    amount, bound = _amount(str(one)), _amount(str(other))
    return isinstance(amount, Fraction) and isinstance(bound, Fraction) and amount > bound


def _amount(text: str) -> Fraction | str:
    """The number; the text itself where it is none."""
    parts = _SPLIT.fullmatch(text)
    unit = None if parts is None else _SMALLER_UNITS.get(parts[2], _BYTES_PER_UNIT.get(parts[2]))
    try:
        return text if parts is None or unit is None else Fraction(parts[1]) * unit
    except ValueError:
        return text
