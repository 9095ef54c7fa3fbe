"""Number formats of weights and KV cache."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Precision(StrEnum):
    """How a number is stored. FP4 stands for every 4-bit weight format with block scales (MXFP4, NVFP4, AWQ, GPTQ)."""

    BF16 = "bf16"
    """Also FP16: two bytes."""
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def bytes(self) -> float:
        """Bytes per number, block scales included."""
        return _BYTES[self]


_BYTES: Final = {
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.FP4: 4.25 / 8,  # 32 numbers of 4 bits share a scale of 8 bits (OCP MX specification 1.0)
}
