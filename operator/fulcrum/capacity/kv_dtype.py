"""Which element type a cluster's KV cache has: what `engine.kvCache.dtype: auto` stands for, and what is wrong with it.

One type for all pools: engines with unlike ones cannot exchange KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.attention import AttentionKind, computes_fp8
from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.types import InferenceClusterSpec, ModelTask, Pool
from fulcrum.capacity.model_kinds import ModelKind, kind_of_name
from fulcrum.capacity.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDtype:
    """A resolved element type, and why it is that."""

    dtype: KvCacheDtype
    """What engines are told; `auto` leaves it to vLLM: the checkpoint's own scheme, else the model's type."""
    why: str
    problem: str | None = None
    """Why the model is wrong or slow with it; None: nothing is known against it."""


def resolved_kv_dtype(spec: InferenceClusterSpec, kind: ModelKind | None = None) -> KvDtype:
    """Return the type that workers of a new revision get. `kind` is what is known beside the model's name."""
    kind = kind or kind_of_name(spec.model.name)
    wanted, pools = spec.engine.kv_cache.dtype, [pool for pool in spec.pools if pool.workers.max > 0]
    if spec.model.task is ModelTask.POOLING:
        return KvDtype(dtype=wanted, why="a pooling model keeps no KV: vLLM's own auto")
    if wanted is KvCacheDtype.AUTO:
        against = _why_no_fp8(kind, pools, spec.model.name)
        if against is None and kind is not None:
            why = f"{spec.model.name} is known to be good with FP8 KV ({kind.source})"
            return KvDtype(dtype=KvCacheDtype.FP8, why=why)
        return KvDtype(dtype=wanted, why=against or "")
    problem = _problem(kind, pools, spec.model.name) if wanted is KvCacheDtype.FP8 else None
    return KvDtype(dtype=wanted, why=f"spec.engine.kvCache.dtype is {wanted.value}", problem=problem)


def kv_precision(spec: InferenceClusterSpec, kind: ModelKind | None = None) -> Precision:
    """Return the size that KV of the cluster is counted with; `kind` as in `resolved_kv_dtype`.

    A scheme of the checkpoint's own counts as FP8: it has 8 bits, or 4 and scales.
    """
    kind = kind or kind_of_name(spec.model.name)
    dtype = resolved_kv_dtype(spec, kind).dtype
    own = dtype is KvCacheDtype.AUTO and kind is not None and kind.scaled
    return Precision.FP8 if dtype is KvCacheDtype.FP8 or own else Precision.BF16


def _why_no_fp8(kind: ModelKind | None, pools: list[Pool], name: str) -> str | None:
    """Return why `auto` is left to vLLM; None where FP8 is known to be good."""
    if kind is None or (kind.fp8 is None and not kind.scaled):
        return f"nothing is known of {name} with FP8 KV: vLLM's own auto"
    if kind.scaled:
        return "the checkpoint brings its own scheme, which vLLM's auto takes"
    if not kind.fp8:
        return f"not FP8: {kind.source}"
    slow = sorted({pool.accelerator for pool in pools if not computes_fp8(pool.accelerator)})
    return f"not FP8: {', '.join(slow)} would not compute in it" if slow else None


def _problem(kind: ModelKind | None, pools: list[Pool], name: str) -> str | None:
    """Return why FP8 KV, which the spec forces, is wrong for the model or slow on a pool."""
    if kind is None or kind.scaled:
        return None
    if kind.fp8 is False:
        return f"{name} answers badly with an FP8 KV cache without scales ({kind.source})"
    slow = sorted(
        {pool.accelerator for pool in pools if not computes_fp8(pool.accelerator) and pool.accelerator != "cpu"}
    )
    if slow and kind.attention is not AttentionKind.DENSE:
        return f"{name} has {kind.attention.value} attention, which is slow with FP8 KV on {', '.join(slow)}"
    if kind.attention is AttentionKind.PREFIX:
        return f"{name} leaves its quick attention kernels with an FP8 KV cache"
    return None
