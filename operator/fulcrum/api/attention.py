"""Which attention backends GPUs have for a kind of model, and which one vLLM chooses.

NIXL's handshake compares the attention backend of both engines, and refuses when they differ. The decode engine then
computes the whole prompt again, without an error: disaggregation is lost in silence. vLLM chooses a backend by the GPU
and by the model, so pools of unlike GPUs that exchange KV need a common one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class AttentionKind(StrEnum):
    """What a model's attention needs of a backend."""

    DENSE = "dense"
    LATENT = "latent"
    """Multi-head latent attention (DeepSeek-V3, Kimi-K2)."""
    SPARSE_LATENT = "sparse latent"
    """Latent attention over chosen tokens (DeepSeek-V3.2)."""
    SINKS = "sinks"
    """Attention sinks (gpt-oss)."""
    PREFIX = "multimodal prefix"
    """Tokens of an image attend in both directions (Gemma-3)."""


_Table = dict[AttentionKind, tuple[str, str]]


def _table(dense: str, latent: str, sparse: str, sinks: str, prefix: str) -> _Table:
    """Each text is the backend with a model-dtype cache and the one with FP8, where they differ; `-`: none starts."""
    texts = zip(AttentionKind, (dense, latent, sparse, sinks, prefix), strict=True)
    return {kind: (text.split("/")[0], text.split("/")[-1]) for kind, text in texts}


_AMPERE: Final = _table("FLASH_ATTN/FLASHINFER", "TRITON_MLA", "-", "TRITON_ATTN", "TRITON_ATTN")
_CHOICES: Final = (
    # accelerators, compute capability, what vLLM chooses by itself
    (r"(A100|A800|A30)", (8, 0), _AMPERE),
    (r"(A10|A10G|A16|A40|A6000)", (8, 6), _AMPERE),
    (r"(L4|L40|L40S|RTX4090|RTX6000-Ada)", (8, 9), _AMPERE),
    (
        r"(H100|H200|H800|H20|GH200)",
        (9, 0),
        _table("FLASH_ATTN", "FLASH_ATTN_MLA/FLASHMLA", "FLASH_ATTN_MLA_SPARSE/FLASHMLA_SPARSE", "FLASH_ATTN",
               "TRITON_ATTN"),
    ),
    (
        r"(B200|GB200)",
        (10, 0),
        _table("FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER", "FLASH_ATTN"),
    ),
    (
        r"(B300|GB300)",
        (10, 3),
        _table("FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER", "FLASH_ATTN"),
    ),
)  # fmt: skip
"""What vLLM 0.32 chooses (`platforms/cuda.py`: `_get_backend_priorities`, and the validation of each backend), with 16
query heads a GPU; `benchmarks/models.py` asks it."""
_BLOCK_TOKENS: Final = {
    "FLASHMLA": 64,
    "FLASHMLA_SPARSE": 64,
    "FLASH_ATTN_MLA_SPARSE": 64,
    "FLASHINFER_MLA": 32,
    "FLASHINFER_MLA_SPARSE": 32,
}
"""Tokens in one KV block where vLLM chooses, for backends that do not take the usual 16."""
KNOWN_ACCELERATORS: Final = f"^({'|'.join(names for names, _, _ in _CHOICES)})(-.*)?$"
COMMON_BACKENDS: Final = {
    # kind -> (lowest compute capability, backend), the quickest first
    AttentionKind.DENSE: (((8, 0), "FLASHINFER"),),
    AttentionKind.LATENT: (((8, 0), "TRITON_MLA"),),
    AttentionKind.SPARSE_LATENT: (((9, 0), "FLASHMLA_SPARSE"),),
    AttentionKind.SINKS: (((9, 0), "FLASHINFER"), ((8, 0), "TRITON_ATTN")),
    AttentionKind.PREFIX: (((8, 0), "TRITON_ATTN"),),
}
"""Backends that vLLM has for all generations above, from one on, with FP8 KV and without.

Hopper would choose FLASH_ATTN, which needs Hopper for FP8 KV; FLASHINFER is slower there by a few percent, and far
quicker than computing each prompt twice. FLASHINFER has no latent attention, no multimodal prefix, and sinks from
Hopper on."""
_FP8_KERNELS: Final = (8, 9)
"""Compute capability from which on GPUs compute in FP8; below it each read of FP8 KV is a conversion."""


def common_backend(accelerators: Iterable[str], kind: AttentionKind) -> str | None:
    """Return the backend that all these NVIDIA GPUs have; None where there is none."""
    least = min((compute_capability(each) or (0, 0) for each in accelerators), default=(0, 0))
    return next((backend for needed, backend in COMMON_BACKENDS[kind] if least >= needed), None)


def usual_backend(accelerator: str, kind: AttentionKind, *, fp8: bool) -> str | None:
    """Return what vLLM chooses by itself, `-` where none of its backends serves; None for an unknown accelerator."""
    for names, _, table in _CHOICES:
        if re.fullmatch(f"{names}(-.*)?", accelerator):
            return table[kind][1 if fp8 else 0]
    return None


def usual_block_tokens(backend: str) -> int:
    """Return the tokens in one KV block that vLLM chooses for a backend."""
    return _BLOCK_TOKENS.get(backend, 16)


def compute_capability(accelerator: str) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU; None for other accelerators."""
    return next((found for names, found, _ in _CHOICES if re.fullmatch(f"{names}(-.*)?", accelerator)), None)


def computes_fp8(accelerator: str) -> bool:
    """Report whether the GPU is known to compute with FP8 KV of the usual format."""
    found = compute_capability(accelerator)
    return found is not None and found >= _FP8_KERNELS
