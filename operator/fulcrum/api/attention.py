"""Which attention backend the engines of a cluster get.

NIXL's handshake compares the attention backend of both engines, and refuses when they differ. The decode engine then
computes the whole prompt again, without an error: disaggregation is lost in silence. vLLM chooses a backend by the GPU,
so pools of unlike GPUs that exchange KV need a common one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fulcrum.api.pool_types import Pool
    from fulcrum.api.types import InferenceClusterSpec

COMMON_BACKEND: Final = "FLASHINFER"
"""The backend that vLLM 0.32 has for every generation below, with FP8 KV and without (compute capability 8.0 to 12.x).

Hopper would choose FLASH_ATTN, which needs Hopper for FP8 KV; FLASHINFER is slower there by a few percent, and far
quicker than computing each prompt twice. A model that FLASHINFER cannot serve (multi-head latent attention) ends the
engine at start with a message, which names `attentionBackend`."""
_CHOICES: Final = (
    # accelerators, with FP8 KV, with any other
    (r"(A100|A800|A30|A10|A10G|A16|A40|A6000)", "FLASHINFER", "FLASH_ATTN"),
    (r"(L4|L40|L40S|RTX4090|RTX6000-Ada)", "FLASHINFER", "FLASH_ATTN"),
    (r"(H100|H200|H800|H20|GH200)", "FLASH_ATTN", "FLASH_ATTN"),
    (r"(B200|B300|GB200|GB300)", "FLASHINFER", "FLASHINFER"),
)
"""What vLLM chooses by itself, by GPU (vLLM 0.32, platforms/cuda.py; models without latent attention)."""
KNOWN_ACCELERATORS: Final = f"^({'|'.join(names for names, _, _ in _CHOICES)})(-.*)?$"


def attention_backend(spec: InferenceClusterSpec, pool: Pool) -> str | None:
    """Return the backend that the engines of `pool` are told; None leaves the choice to vLLM."""
    told = _told(spec, pool)
    if told is not None or not exchanges_kv(pool):
        return told
    fp8 = spec.engine.kv_cache.dtype.value == "fp8"
    chosen = {_choice(other.accelerator, fp8=fp8) for other in spec.pools if exchanges_kv(other)}
    return COMMON_BACKEND if len(chosen) > 1 and None not in chosen else None


def exchanges_kv(pool: Pool) -> bool:
    """Report whether workers of the pool send KV to others or receive it: always `mixed` ones do neither."""
    return pool.workers.max > 0 and any(role.value != "mixed" for role in pool.roles)


def _told(spec: InferenceClusterSpec, pool: Pool) -> str | None:
    own = pool.engine.attention_backend if pool.engine is not None else None
    return own or spec.engine.attention_backend


def _choice(accelerator: str, *, fp8: bool) -> str | None:
    for names, with_fp8, otherwise in _CHOICES:
        if re.fullmatch(f"{names}(-.*)?", accelerator):
            return with_fp8 if fp8 else otherwise
    return None
