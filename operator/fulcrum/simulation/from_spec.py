"""The cluster that an InferenceCluster's spec describes, as the simulator needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, OffloadPolicy, Pool
from fulcrum.capacity.accelerators import CPU, accelerator
from fulcrum.capacity.known_models import UnknownModelError
from fulcrum.capacity.kv import BLOCK_TOKENS, TransferCost, kv_bytes_per_token
from fulcrum.capacity.kv_dtype import kv_precision
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.pool_roofline import pool_roofline
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.transfers import pool_transfer
from fulcrum.simulation.cluster import ClusterModel, Links, PoolModel
from fulcrum.simulation.kv_tiers import KvTiers

HOST_BYTES_PER_SECOND: Final = 50e9
"""PCIe Gen5 x16 as large copies reach it (`kv.sheet.LINKS`)."""
POOL_BYTES_PER_SECOND: Final = 2.9e9
"""A network of 25 Gbit/s (`kv.sheet.LINKS`)."""


class NoSpeedError(ValueError):
    """It is not known how fast the workers of a pool are. Says which, and that a profile would tell."""


def cluster_model(
    spec: InferenceClusterSpec,
    *,
    profiles: Mapping[str, WorkerSpeed],
    start_seconds: float,
    model: ModelFacts | None = None,
    links: Links | None = None,
    host_bytes_per_second: float = HOST_BYTES_PER_SECOND,
    pool_bytes_per_second: float = POOL_BYTES_PER_SECOND,
) -> ClusterModel:
    """Return the pools of `spec` that may have workers; speeds by `profiles` (by pool), else by the roofline.

    `model` is what is known of the model; None: what its name says. The last two are the links of each worker to its
    host memory and to the KV pool, where the spec has them.

    Raises:
        NoSpeedError: a pool on CPUs without a profile, or offloaded KV of a model whose size is not known.
        UnknownModelError, UnknownAcceleratorError, EngineShapeError: the roofline does not know it, or it cannot be.
    """
    pools = [pool for pool in spec.pools if pool.workers.max > 0]
    if not pools:
        raise NoSpeedError("no pool has any workers: set workers.max above 0")
    known = model or facts_of_name(spec.model.name)
    speeds = {pool.name: profiles.get(pool.name) or _roofline(spec, pool, known) for pool in pools}
    return ClusterModel(
        pools=tuple(
            PoolModel(
                name=pool.name,
                speed=speeds[pool.name],
                ranks=speeds[pool.name].ranks,
                gpus_per_worker=pool.gpus_per_worker or 1,
                start_seconds=start_seconds,
                expected_transfer=pool_transfer(spec, pool, known),
            )
            for pool in pools
        ),
        links=links or Links(),
        block_tokens=_power_of_two(spec.engine.kv_cache.block_size or BLOCK_TOKENS),
        kv_tiers=_kv_tiers(spec, known, host_bytes_per_second, pool_bytes_per_second),
        drain_timeout_seconds=spec.drain_timeout_seconds,
    )


def _power_of_two(tokens: int) -> int:
    """Return the largest that is not above: prefixes are simulated in 512 tokens, and blocks divide that."""
    return 1 << (tokens.bit_length() - 1)


def _kv_tiers(
    spec: InferenceClusterSpec, model: ModelFacts, host_bytes_per_second: float, pool_bytes_per_second: float
) -> KvTiers | None:
    cache = spec.engine.kv_cache
    offload = cache.offload
    if offload is None:
        return None
    if model.dimensions is None:
        error = UnknownModelError(spec.model.name)
        raise NoSpeedError(f"engine.kvCache.offload: how large the KV of a token is, is not known: {error}")
    size = kv_bytes_per_token(model.dimensions, kv_precision(spec, model.kind))

    def link(bytes_per_second: float) -> TransferCost:
        return TransferCost(base_seconds=0.0, seconds_per_token=size / bytes_per_second)

    return KvTiers(
        host_tokens=int(number_of_bytes(offload.host_memory) / size),
        host_link=link(host_bytes_per_second),
        pool_tokens=int(number_of_bytes(offload.pool.size) / size) if offload.pool is not None else 0,
        pool_link=link(pool_bytes_per_second),
        front=offload.policy is OffloadPolicy.PARTIAL_RECOMPUTE,
    )


def _roofline(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> WorkerSpeed:
    if accelerator(pool.accelerator) is CPU:
        raise NoSpeedError(f"pool {pool.name}: how fast a worker on CPUs is only a profile can tell (--profile)")
    return pool_roofline(spec, pool, model)
