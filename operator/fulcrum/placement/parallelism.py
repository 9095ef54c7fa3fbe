"""Which workers a node can hold: every parallelism that fits memory and promise, and the load that each carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

from fulcrum.api.names import Role
from fulcrum.capacity.accelerators import CPU, Accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import kv_bytes_per_token
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import shape_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.placement.inventory import Inventory, NodeKind
from fulcrum.placement.performance import Performance, highest_rate

MOST_ALIKE: Final = 8
"""Workers in the pool by which a single worker's rate is judged. More gain little by sharing one queue: under 3 %."""
_TENSOR: Final = (1, 2, 4, 8, 16)
"""Powers of two, so that any set of workers whose GPUs add up to a node's packs into it."""
_PIPELINE: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The model, and how its engine is run."""

    model: ModelConfig
    weights: Precision | None = None
    """None: as published."""
    kv: Precision = Precision.FP8
    max_batch: int = 1024
    """vLLM's `max_num_seqs`. Its usual 256 is full before a fast worker's steps take long, and while it is, the router
    sends more there than to slow workers that have room."""
    max_batched_tokens: int = 8192
    max_model_tokens: int = 0
    """Longest prompt plus output that the KV cache of a worker must hold; 0: no bound."""
    transfers_from_stages: bool = False
    """Prefill and decode workers may have pipeline stages. vLLM's NIXL connector cannot move KV between them, so this
    is for studies and never for a plan that is deployed."""

    def shape(self, gpu: Accelerator, tensor: int, pipeline: int) -> EngineShape:
        """Return one worker. Raises EngineShapeError where the parallelism does not divide the model."""
        return EngineShape(
            model=self.model,
            accelerator=gpu,
            tensor=tensor,
            pipeline=pipeline,
            weights=self.weights or self.model.weights,
            kv=self.kv,
            max_batch=self.max_batch,
            max_batched_tokens=self.max_batched_tokens,
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Return what one token of a prompt moves from prefill to decode."""
        return kv_bytes_per_token(self.model, self.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOption:
    """One way to form a worker on nodes of a kind. Rates are requests/s within the promise; 0: cannot take the role."""

    kind: NodeKind
    tensor: int
    pipeline: int
    speed: WorkerSpeed
    prefill_rate: float
    decode_rate: float
    mixed_rate: float

    @property
    def gpus(self) -> int:
        """Return the GPUs of one worker."""
        return self.tensor * self.pipeline

    @property
    def price_per_hour(self) -> float:
        """Return what its GPUs cost."""
        return self.gpus * self.kind.price_per_gpu_hour

    def rate(self, role: Role) -> float:
        """Return requests/s in a role."""
        return {Role.PREFILL: self.prefill_rate, Role.DECODE: self.decode_rate, Role.MIXED: self.mixed_rate}[role]


def shapes(kind: NodeKind, engine: Engine) -> list[tuple[int, int, WorkerSpeed]]:
    """Return (tensor, pipeline, speed) of every worker that fits into the memory of a node of this kind."""
    found = []
    for tensor in _TENSOR:
        for pipeline in _PIPELINE:
            if tensor * pipeline > kind.gpus or kind.accelerator is CPU:
                continue
            try:
                speed = shape_speed(engine.shape(kind.accelerator, tensor, pipeline))
            except EngineShapeError:
                continue
            if speed.kv_capacity_tokens >= max(engine.max_model_tokens, 1):
                found.append((tensor, pipeline, speed))
    return found


def options(inventory: Inventory, engine: Engine, performance: Performance) -> dict[NodeKind, tuple[WorkerOption, ...]]:
    """Return for each kind of node the workers that keep the promise in at least one role."""
    kinds = inventory.kinds()
    gpus: dict[Accelerator, int] = {}
    for kind, nodes in kinds.items():
        chip = chip_of(kind.accelerator)
        gpus[chip] = gpus.get(chip, 0) + len(nodes) * kind.gpus
    rated: dict[tuple[Accelerator, int, int], tuple[float, float, float]] = {}
    found: dict[NodeKind, tuple[WorkerOption, ...]] = {}
    for kind in kinds:
        each = []
        for tensor, pipeline, speed in shapes(kind, engine):
            # What a worker carries depends on its GPUs and not on price, place or the size of its node.
            key = (chip_of(kind.accelerator), tensor, pipeline)
            if key not in rated:
                alike = max(1, min(MOST_ALIKE, gpus[key[0]] // (tensor * pipeline) // 2))
                split = pipeline == 1 or engine.transfers_from_stages
                rated[key] = _rates(speed, alike, split=split, performance=performance)
            prefill, decode, mixed = rated[key]
            if max(rated[key]) > 0:
                each.append(
                    WorkerOption(
                        kind=kind,
                        tensor=tensor,
                        pipeline=pipeline,
                        speed=speed,
                        prefill_rate=prefill,
                        decode_rate=decode,
                        mixed_rate=mixed,
                    )
                )
        found[kind] = tuple(each)
    return found


ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)


def chip_of(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without the size of its node."""
    return replace(accelerator, per_machine=0)


def _rates(speed: WorkerSpeed, alike: int, *, split: bool, performance: Performance) -> tuple[float, float, float]:
    """Return requests/s of one worker among `alike` ones, by role: prefill, decode, mixed."""
    pool = [(speed, alike)]
    # A request must be inside both promises: each role may lose the root of what both may lose.
    each = sqrt(performance.target)
    return (
        highest_rate(lambda rate: performance.prefill(rate, pool), each) / alike if split else 0.0,
        highest_rate(lambda rate: performance.decode(rate, pool), each) / alike if split else 0.0,
        highest_rate(lambda rate: performance.mixed(rate, pool), performance.target) / alike,
    )
