"""A change of an engine: a CPU without kernels for an FP8 KV cache rounds keys and values to FP8.

The cache keeps the model's type, so it holds what a kernel would read back from FP8 (e4m3, scale 1.0).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

_MOST = torch.finfo(torch.float8_e4m3fn).max
_store = CPUAttentionBackendImpl.do_kv_cache_update


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Return what comes back of values that are stored in FP8."""
    return values.clamp(-_MOST, _MOST).to(torch.float8_e4m3fn).to(values.dtype)


def _store_rounded(
    backend: CPUAttentionBackendImpl, layer: Any, key: torch.Tensor, value: torch.Tensor, *others: Any
) -> None:
    _store(backend, layer, rounded(key), rounded(value), *others)


CPUAttentionBackendImpl.do_kv_cache_update = _store_rounded
