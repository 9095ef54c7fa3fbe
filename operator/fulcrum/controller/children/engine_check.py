"""What no engine could serve, or may not without the operator's leave, found before any worker is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fulcrum.api.amd import has_fnuz
from fulcrum.api.attention import (
    AttentionKind,
    common_backend,
    compute_capability,
    usual_backend,
    usual_block_tokens,
)
from fulcrum.api.names import Role
from fulcrum.api.pool_attention import attention_backend, exchanges_kv
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, KvCacheDtype, Pool
from fulcrum.capacity.engine import DENSE
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.model_kinds import ModelKind
from fulcrum.controller.children.worker_node import named_ports, on_gpu
from fulcrum.controller.installation import Installation
from fulcrum.decide import Refusal

_UNKNOWN: Final = ModelKind()
_LATENT: Final = frozenset((AttentionKind.LATENT, AttentionKind.SPARSE_LATENT))


def refused_engines(
    spec: InferenceClusterSpec,
    installation: Installation,
    kv_dtype: KvCacheDtype | None = None,
    model: ModelFacts | None = None,
) -> dict[str, Refusal]:
    """Return, by pool, why its workers are not made. `kv_dtype` and `model` as in `worker_pod`."""
    model = model or facts_of_name(spec.model.name)
    kind = model.kind or _UNKNOWN
    fp8 = (kv_dtype or spec.engine.kv_cache.dtype) is KvCacheDtype.FP8
    pools = [pool for pool in spec.pools if pool.workers.max > 0]
    refused = {}
    for pool in pools:
        found = [*_not_allowed(spec, pool, kind, installation), *_no_backend(spec, pool, kind, fp8=fp8)]
        found += [*_not_pullable(spec, pool, pools, model), *_unlike_fp8(pool, pools, fp8=fp8)]
        found += [*_unlike_network(pool, pools), *_same_ports(pool, pools), *_odd_blocks(spec, pool, kind, fp8=fp8)]
        found += _no_experts(spec, pool, model)
        if found:
            refused[pool.name] = Refusal(message=" ".join(found), reason=Reason.ENGINE_REFUSED)
    return refused


def _not_allowed(spec: InferenceClusterSpec, pool: Pool, kind: ModelKind, installation: Installation) -> Iterator[str]:
    """What only the operator's flags allow."""
    if spec.model.trust_remote_code and not installation.allow_remote_code:
        yield "model.trustRemoteCode: the operator does not run with --allow-remote-code."
    if kind.remote_code and not spec.model.trust_remote_code:
        yield (
            f"model.name: the architecture of {spec.model.name} is code in its own repository; set "
            "model.trustRemoteCode and model.revision."
        )
    asked = {"runAsRoot": pool.rdma.run_as_root, "hostNetwork": pool.rdma.host_network} if pool.rdma else {}
    for field in (name for name, is_set in asked.items() if is_set and not installation.allow_host_access):
        yield f"pools[].rdma.{field}: the operator does not run with --allow-host-access."


def _no_backend(spec: InferenceClusterSpec, pool: Pool, kind: ModelKind, *, fp8: bool) -> Iterator[str]:
    """Where vLLM has no attention backend for the model on this GPU, or none that all pools have."""
    if usual_backend(pool.accelerator, kind.attention, fp8=fp8) == "-":
        yield f"vLLM has no attention backend for {spec.model.name} ({kind.attention.value}) on {pool.accelerator}."
        return
    if not exchanges_kv(pool) or spec.engine.attention_backend or (pool.engine and pool.engine.attention_backend):
        return
    usual = {
        other.accelerator: usual_backend(other.accelerator, kind.attention, fp8=fp8)
        for other in spec.pools
        if exchanges_kv(other)
    }
    able = {name: backend for name, backend in usual.items() if backend != "-"}  # the others are refused themselves
    chosen = set(able.values())
    if len(chosen) > 1 and None not in chosen and common_backend(able, kind.attention) is None:
        yield (
            f"{', '.join(sorted(able))} have no attention backend in common for {spec.model.name} "
            f"({kind.attention.value}), so no KV could be handed over; use like GPUs, or roles: [mixed]."
        )


def _odd_blocks(spec: InferenceClusterSpec, pool: Pool, kind: ModelKind, *, fp8: bool) -> Iterator[str]:
    """Where the kernels of the backend take no KV blocks of the size that is asked for: no engine would start.

    Source: `select_common_block_size` of vLLM 0.32, and `get_supported_kernel_block_sizes` of each backend.
    """
    asked = spec.engine.kv_cache.block_size
    told = attention_backend(spec, pool, kind=kind.attention, fp8=fp8)
    backend = told or usual_backend(pool.accelerator, kind.attention, fp8=fp8)
    if asked is None or backend is None or compute_capability(pool.accelerator) is None:
        return
    least = usual_block_tokens(backend)
    if asked % least:
        yield (
            f"engine.kvCache.blockSize: {backend}, which {spec.model.name} has on {pool.accelerator}, takes blocks of "
            f"{least} tokens and whole multiples of that, not {asked}; leave the field out, or write one of them."
        )


def _unlike_fp8(pool: Pool, pools: list[Pool], *, fp8: bool) -> Iterator[str]:
    """Where FP8 KV would be handed over between the two kinds of FP8: the same bytes are other numbers."""
    others = [other.name for other in pools if exchanges_kv(other) and not has_fnuz(other.accelerator)]
    if fp8 and exchanges_kv(pool) and has_fnuz(pool.accelerator) and others:
        yield (
            f"engine.kvCache.dtype: the FP8 of {pool.accelerator} (FNUZ) is not that of pool {', '.join(others)} "
            "(OCP), so no KV could be handed over; use kvCache.dtype: bf16, or roles: [mixed]."
        )


def _no_experts(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> Iterator[str]:
    """Where ranks would share the experts of a model that is known to have none."""
    if model.dimensions is None or model.dimensions.moe is not None:
        return
    if pool.parallelism.data > 1 or pool.parallelism.experts:
        yield f"pools[].parallelism: {spec.model.name} {DENSE}."


def _unlike_network(pool: Pool, pools: list[Pool]) -> Iterator[str]:
    """Where KV would be handed over between a node's network and that of Pods.

    What comes from a node's address is of no Pod to a NetworkPolicy, so workers on the Pod network refuse it.
    """
    exchanging = [each for each in pools if exchanges_kv(each)]
    if pool in exchanging and pool.on_host_network != exchanging[0].on_host_network:
        yield (
            f"pools[].rdma.hostNetwork: pool {exchanging[0].name} and pool {pool.name} exchange KV, and only one of "
            "them uses the network of its nodes; set it in both or in none, or use roles: [mixed]."
        )


def _same_ports(pool: Pool, pools: list[Pool]) -> Iterator[str]:
    """Where workers of an earlier pool could have taken the ports of the node."""
    if not pool.on_host_network:
        return
    for earlier in pools[: pools.index(pool)]:
        taken = set(named_ports(earlier).values()) & set(named_ports(pool).values())
        if taken and earlier.on_host_network and _may_share_nodes(earlier, pool):
            yield (
                f"pools[].ports: pool {earlier.name} and pool {pool.name} use the network of their nodes, may share "
                f"nodes, and both listen on {', '.join(map(str, sorted(taken)))}; set other ports in one of them."
            )


def _may_share_nodes(one: Pool, other: Pool) -> bool:
    """Nodes are chosen by their accelerator; workers on CPUs run anywhere."""
    return one.accelerator == other.accelerator or not (on_gpu(one) and on_gpu(other))


def _not_pullable(spec: InferenceClusterSpec, pool: Pool, pools: list[Pool], model: ModelFacts) -> Iterator[str]:
    """Where decode workers cannot pull KV that is split over more ranks than the model has KV heads.

    Source: `NixlBaseConnectorWorker._validate_remote_agent_handshake` and `TransferTopology.is_kv_replicated` of vLLM
    0.32: fewer ranks on the decode side do not read replicated heads, except latent attention and hybrid models.
    """
    heads, hybrid = model.kv_heads, model.kind is not None and model.kind.hybrid
    if heads is None or hybrid or model.attention in _LATENT or Role.PREFILL not in pool.roles:
        return
    tensor = pool.parallelism.tensor
    if tensor <= heads:
        return
    smaller = [other.name for other in pools if Role.DECODE in other.roles and other.parallelism.tensor < tensor]
    if smaller:
        yield (
            f"pools[].parallelism.tensor: {tensor} prefill ranks are more than the {heads} KV heads of "
            f"{spec.model.name}, and vLLM cannot pull their KV into fewer ranks (pool {', '.join(smaller)}); use at "
            f"most {heads}, the same in both, or take prefill out of the roles of pool {pool.name}."
        )
