"""What differs on AMD's accelerators: their name, their resource, and the FP8 of the MI300 generation."""

from __future__ import annotations

import re
from typing import Final

AMD_RESOURCE: Final = "amd.com/gpu"
"""Extended resource of one GPU, as AMD's device plugin has it."""
_AMD: Final = re.compile(r"MI\d")
_FNUZ: Final = re.compile(r"MI3(00|08|25)")


def is_amd(accelerator: str) -> bool:
    """Report whether an accelerator is AMD's (`MI300X-192GB`)."""
    return _AMD.match(accelerator) is not None


def has_fnuz(accelerator: str) -> bool:
    """Report whether the accelerator's FP8 is FNUZ and not OCP: the same byte is another number, half as large or NaN.

    MI300X, MI308X and MI325X (gfx942) have FNUZ; MI350X and MI355X (gfx950) have OCP, as NVIDIA has. Source:
    `RocmPlatform.is_fp8_fnuz` of vLLM 0.32.
    """
    return _FNUZ.match(accelerator) is not None
