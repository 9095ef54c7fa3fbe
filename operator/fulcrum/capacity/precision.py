"""Number formats of weights and KV cache."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class Precision(StrEnum):
    """How a number is stored."""

    BF16 = "bf16"
    """Also FP16: two bytes."""
    FP8 = "fp8"
    FP4 = "fp4"
    """Floating point with block scales (MXFP4, NVFP4), which some accelerators compute in."""
    INT4 = "int4"
    """Whole numbers with scales per group (AWQ, GPTQ), which are widened before they are multiplied."""

    @property
    def bytes(self) -> float:
        """Bytes per number, block scales included."""
        match self:
            case Precision.BF16:
                return 2.0
            case Precision.FP8:
                return 1.0
            case Precision.FP4:  # 32 numbers of 4 bits share a scale of 8 bits (OCP MX specification 1.0)
                return (4 + 8 / 32) / 8
            case Precision.INT4:  # 128 numbers share a scale and a zero of 16 bits
                return (4 + 32 / 128) / 8


_NAMED: Final = (
    (re.compile(r"(nv|mx)?fp4|w4a4"), Precision.FP4),
    (re.compile(r"awq|gptq|int4|4bit|w4a16|w4a8"), Precision.INT4),
    (re.compile(r"fp8|int8|8bit|w8a8|w8a16"), Precision.FP8),
    (re.compile(r"bf16|fp16"), Precision.BF16),
)


def named_precision(name: str) -> Precision | None:
    """Return the format in the name of a checkpoint (`-FP8`, `-AWQ`, `-NVFP4`, `-FP8-dynamic`); None: it has none."""
    words = [word for word in re.split(r"[-_.]", name.rpartition("/")[2].lower())[1:] if word]
    if "int8" in words or "8bit" in words:  # `-GPTQ-Int8`: the method alone says four bits
        words = [word for word in words if word not in ("awq", "gptq")]
    for pattern, precision in _NAMED:
        if any(pattern.fullmatch(word) for word in words):
            return precision
    return None
