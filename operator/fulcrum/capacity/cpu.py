"""What a CPU can do for an engine, read off the text of /proc/cpuinfo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
_FLAGS: Final = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_AVX512: Final = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq"})
_AMX: Final = frozenset({"amx_tile"})

NO_FP8_KV: Final = (
    "vLLM keeps an FP8 KV cache only on CPUs with AVX-512 or AMX, and this machine's has neither; set it to auto, and "
    "add --dtype and float32 to spec.engine.args, with which such a CPU is several times quicker than with bf16"
)
"""Why, and what to do, for people."""


def refuses_fp8_kv(cpuinfo: str) -> bool:
    """Report whether vLLM certainly refuses an FP8 KV cache on this CPU: attention kernels need AVX-512 or AMX.

    `cpuinfo` is the text of /proc/cpuinfo. A CPU that does not say what it can do is not known to refuse.
    """
    found = _FLAGS.search(cpuinfo)
    if found is None:
        return False
    flags = set(found.group(1).split())
    return not (flags >= _AVX512 or flags >= _AMX)
