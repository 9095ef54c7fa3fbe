"""Which attention backend the engines of a pool are told, so that pools that exchange KV have the same."""

from __future__ import annotations

from fulcrum.api.attention import AttentionKind, common_backend, usual_backend
from fulcrum.api.pool_types import Pool
from fulcrum.api.types import InferenceClusterSpec


def attention_backend(
    spec: InferenceClusterSpec, pool: Pool, *, kind: AttentionKind = AttentionKind.DENSE, fp8: bool | None = None
) -> str | None:
    """Return the backend that the engines of `pool` are told; None leaves the choice to vLLM.

    `fp8` says whether the KV cache is FP8; None: as the spec has it.
    """
    told = _told(spec, pool)
    if told is not None or not exchanges_kv(pool):
        return told
    if fp8 is None:
        fp8 = spec.engine.kv_cache.dtype.value == "fp8"
    accelerators = {other.accelerator for other in spec.pools if exchanges_kv(other)}
    chosen = {usual_backend(accelerator, kind, fp8=fp8) for accelerator in accelerators}
    return common_backend(accelerators, kind) if len(chosen) > 1 and None not in chosen else None


def exchanges_kv(pool: Pool) -> bool:
    """Report whether workers of the pool send KV to others or receive it: always `mixed` ones do neither."""
    return pool.workers.max > 0 and any(role.value != "mixed" for role in pool.roles)


def _told(spec: InferenceClusterSpec, pool: Pool) -> str | None:
    own = pool.engine.attention_backend if pool.engine is not None else None
    return own or spec.engine.attention_backend
