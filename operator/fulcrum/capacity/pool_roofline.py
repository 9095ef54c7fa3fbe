"""The roofline of the workers that a pool's spec describes, with the limits that its engine arguments set."""

from __future__ import annotations

import re
from typing import Final

from fulcrum.api.engine_args import engine_option
from fulcrum.api.parallelism import PLAIN_BACKEND
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.accelerators import CPU, MEMORY_UTILIZATION, UnknownAcceleratorError, accelerator
from fulcrum.capacity.engine import EngineShapeError
from fulcrum.capacity.known_models import UnknownModelError
from fulcrum.capacity.kv_dtype import kv_precision
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.roofline import worker_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.transfers import pool_transfer

_NUMBER: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,15}))?([kKmMgGtT]?)")
_UNITS: Final = "kmgt"
"""Of numbers: small ones are powers of 1,000, large ones of 1,024."""


def pool_roofline(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> WorkerSpeed:
    """Return the speed of a worker of `pool` that was not measured yet, with what moving its KV costs.

    Raises:
        UnknownModelError: what is known of the model has no dimensions.
        UnknownAcceleratorError: the pool's accelerator is not in the table.
        EngineShapeError: such a worker cannot be. On a CPU, too, where only what was measured counts: how many cores a
            worker gets is not in the accelerator's name.
    """
    if model.dimensions is None:
        raise UnknownModelError(spec.model.name)
    chosen = accelerator(pool.accelerator)
    if chosen is CPU:
        raise EngineShapeError("how fast a worker on CPUs is only a measurement can tell")
    cache = spec.engine.kv_cache
    arguments = spec.engine_args(pool)
    utilization = engine_option(arguments, "gpu-memory-utilization")
    speed = worker_speed(
        model.dimensions,
        chosen,
        tensor=pool.parallelism.tensor,
        pipeline=pool.parallelism.pipeline,
        data=pool.parallelism.data,
        experts=pool.parallelism.experts,
        expert_backend=pool.expert_backend or PLAIN_BACKEND,
        kv=kv_precision(spec, model.kind),
        max_batch=step_limit(engine_option(arguments, "max-num-seqs")),
        max_batched_tokens=step_limit(engine_option(arguments, "max-num-batched-tokens")),
        kv_memory_bytes=number_of_bytes(cache.memory) // pool.gpus_per_worker if cache.memory is not None else None,
        memory_utilization=MEMORY_UTILIZATION if utilization is None else _fraction(utilization),
    )
    return speed.with_transfer(pool_transfer(spec, pool, model) or speed.transfer)


def known_roofline(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> WorkerSpeed | None:
    """`pool_roofline`, or None where none can be had."""
    try:
        return pool_roofline(spec, pool, model)
    except (UnknownModelError, UnknownAcceleratorError, EngineShapeError):
        return None


def step_limit(written: str | None) -> int:
    """Return a number as vLLM reads it (`human_readable_int`): 8192, 8k, 8K; 0, its default, where it reads none."""
    found = _NUMBER.fullmatch((written or "").strip())
    if found is None:
        return 0
    whole, part, unit = found.groups()
    power = _UNITS.index(unit.lower()) + 1 if unit else 0
    if unit.isupper() or not unit:
        return 0 if part else int(whole) * 1024**power
    return int(float(f"{whole}.{part or 0}") * 1000**power)


def _fraction(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise EngineShapeError(f"--gpu-memory-utilization {written} is no number") from None
