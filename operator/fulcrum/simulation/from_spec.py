"""The cluster that an InferenceCluster's spec describes, as the simulator needs it."""

from __future__ import annotations

from collections.abc import Mapping

from fulcrum.api.durations import seconds
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.accelerators import CPU, accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import BLOCK_TOKENS
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import worker_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.simulation.cluster import ClusterModel, Links, PoolModel


class NoSpeedError(ValueError):
    """Nobody knows how fast the workers of a pool are. Says which, and that a profile would tell."""


def cluster_model(
    spec: InferenceClusterSpec,
    *,
    profiles: Mapping[str, WorkerSpeed],
    start_seconds: float,
    links: Links | None = None,
) -> ClusterModel:
    """Return the pools of `spec` that may have workers; speeds by `profiles` (by pool), else by the roofline.

    Raises:
        NoSpeedError: a pool on CPUs without a profile.
        UnknownModelError, UnknownAcceleratorError, EngineShapeError: the roofline does not know it, or it cannot be.
    """
    pools = [pool for pool in spec.pools if pool.workers.max > 0]
    if not pools:
        raise NoSpeedError("no pool has any workers: set workers.max above 0")
    return ClusterModel(
        pools=tuple(
            PoolModel(
                name=pool.name,
                speed=profiles.get(pool.name) or _roofline(spec, pool),
                gpus_per_worker=pool.parallelism.tensor * pool.parallelism.pipeline,
                start_seconds=start_seconds,
            )
            for pool in pools
        ),
        links=links or Links(),
        block_tokens=spec.engine.kv_cache.block_size or BLOCK_TOKENS,
        drain_timeout_seconds=seconds(spec.balance.flip.drain_timeout),
    )


def _roofline(spec: InferenceClusterSpec, pool: Pool) -> WorkerSpeed:
    chosen = accelerator(pool.accelerator)
    if chosen is CPU:
        raise NoSpeedError(f"pool {pool.name}: how fast a worker on CPUs is only a profile can tell (--profile)")
    tensor, pipeline = pool.parallelism.tensor, pool.parallelism.pipeline
    cache = spec.engine.kv_cache
    memory = number_of_bytes(cache.memory) // (tensor * pipeline) if cache.memory is not None else None
    return worker_speed(
        known_model(spec.model.name),
        chosen,
        tensor=tensor,
        pipeline=pipeline,
        kv=Precision.FP8 if cache.dtype.value == Precision.FP8 else Precision.BF16,
        kv_memory_bytes=memory,
    )
