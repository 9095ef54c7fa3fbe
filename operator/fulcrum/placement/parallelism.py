"""Which workers a node can hold: every parallelism that fits memory and promise, and the load that each carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.parallelism import gpus_of
from fulcrum.capacity.accelerators import CPU, Accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import kv_bytes_per_token
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.profile import Profile, profiled_speed, same_worker
from fulcrum.capacity.roofline import shape_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.placement.division import Division
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
    max_batched_tokens: int = 0
    """0: vLLM's default on the accelerator."""
    profiles: tuple[Profile, ...] = ()
    """Measured workers: each stands for its accelerator and parallelism."""
    max_model_tokens: int = 0
    """Longest prompt plus output that the KV cache of a worker must hold; 0: no bound."""
    transfers_from_stages: bool = False
    """Prefill and decode workers may have pipeline stages. vLLM's NIXL connector cannot move KV between them, so this
    is for studies and never for a plan that is deployed."""

    def shape(self, gpu: Accelerator, tensor: int, pipeline: int) -> EngineShape:
        """Return one worker. Raises EngineShapeError where the parallelism does not fit the model."""
        shape = EngineShape(
            model=self.model,
            accelerator=gpu,
            tensor=tensor,
            pipeline=pipeline,
            weights=self.weights or self.model.weights,
            kv=self.kv,
            max_batch=self.max_batch,
            max_batched_tokens=self.max_batched_tokens,
        )
        shape.require_startable()
        return shape

    def speed(self, shape: EngineShape) -> WorkerSpeed:
        """Return how fast a worker is: as its profile says, else by the roofline. Raises EngineShapeError."""
        speed = shape_speed(shape)
        for each in self.profiles:
            if same_worker(
                each,
                accelerator_name=shape.accelerator.name,
                tensor=shape.tensor,
                pipeline=shape.pipeline,
                data=shape.data,
            ):
                return profiled_speed(each, transfer=speed.transfer)
        return speed

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
    data: int = 1
    speed: WorkerSpeed
    prefill_rate: float
    decode_rate: float
    mixed_rate: float

    @property
    def gpus(self) -> int:
        """Return the GPUs of one worker."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)

    @property
    def price_per_hour(self) -> float:
        """Return what its GPUs cost."""
        return self.gpus * self.kind.price_per_gpu_hour

    def rate(self, role: Role) -> float:
        """Return requests/s in a role."""
        return {Role.PREFILL: self.prefill_rate, Role.DECODE: self.decode_rate, Role.MIXED: self.mixed_rate}[role]


Options = dict[NodeKind, tuple[WorkerOption, ...]]
"""The workers that nodes of each kind can hold."""


def shapes(kind: NodeKind, engine: Engine) -> list[tuple[int, int, WorkerSpeed]]:
    """Return (tensor, pipeline, speed) of every worker that fits into the memory of a node of this kind."""
    found = []
    for tensor in _TENSOR:
        for pipeline in _PIPELINE:
            if gpus_of(tensor=tensor, pipeline=pipeline, data=1) > kind.gpus or kind.accelerator is CPU:
                continue
            try:
                speed = engine.speed(engine.shape(kind.accelerator, tensor, pipeline))
            except EngineShapeError:
                continue
            if speed.kv_capacity_tokens >= max(engine.max_model_tokens, 1):
                found.append((tensor, pipeline, speed))
    return found


def options(
    inventory: Inventory, engine: Engine, performance: Performance, divisions: Sequence[Division]
) -> list[Options]:
    """Return for each division and each kind of node the workers that keep their share in at least one role."""
    kinds = inventory.kinds()
    gpus: dict[Accelerator, int] = {}
    for kind, nodes in kinds.items():
        chip = chip_of(kind.accelerator)
        gpus[chip] = gpus.get(chip, 0) + len(nodes) * kind.gpus
    rated: dict[tuple[Accelerator, int, int], list[_Rates]] = {}
    found: list[Options] = [{} for _ in divisions]
    for kind in kinds:
        for tensor, pipeline, speed in shapes(kind, engine):
            # What a worker carries depends on its GPUs and not on price, place or the size of its node.
            key = (chip_of(kind.accelerator), tensor, pipeline)
            if key not in rated:
                split = pipeline == 1 or engine.transfers_from_stages
                most = max(1, gpus[key[0]] // gpus_of(tensor=tensor, pipeline=pipeline, data=1))
                rated[key] = _rates(speed, most, split=split, performance=performance, divisions=divisions)
            for of_division, (prefill, decode, mixed) in zip(found, rated[key], strict=True):
                if max(prefill, decode, mixed) > 0:
                    option = WorkerOption(
                        kind=kind,
                        tensor=tensor,
                        pipeline=pipeline,
                        speed=speed,
                        prefill_rate=prefill,
                        decode_rate=decode,
                        mixed_rate=mixed,
                    )
                    of_division[kind] = (*of_division.get(kind, ()), option)
    return found


ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)


def chip_of(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without the size of its node."""
    return replace(accelerator, per_machine=0)


_Rates = tuple[float, float, float]
"""Requests/s of one worker by role: prefill, decode, mixed."""


def _rates(
    speed: WorkerSpeed, most: int, *, split: bool, performance: Performance, divisions: Sequence[Division]
) -> list[_Rates]:
    """Return what one worker carries, by division, where the inventory holds at most `most` alike ones."""

    @cache
    def prefill(rate: float, alike: int, ceiling: bool) -> float:
        return performance.prefill(rate, [(speed, alike)], beside_idle=ceiling)

    @cache
    def decode(rate: float, alike: int, ceiling: bool) -> float:
        return performance.decode(rate, [(speed, alike)], beside_idle=ceiling)

    @cache
    def mixed_rate(alike: int) -> float:
        return highest_rate(lambda rate: performance.mixed(rate, [(speed, alike)]), performance.target) / alike

    found = []
    for each in divisions:
        prefilling = decoding = 0.0
        alike = most if each.ceiling else min(MOST_ALIKE, max(1, most // 2))
        if split:
            prefilling = highest_rate(lambda rate: prefill(rate, alike, each.ceiling), each.prefill) / alike  # noqa: B023
            decoding = highest_rate(lambda rate: decode(rate, alike, each.ceiling), each.decode) / alike  # noqa: B023
        if each.ceiling:
            decoding /= each.prefill  # what prefill turns away is no work for decode
        found.append((prefilling, decoding, mixed_rate(most if each.ceiling else min(MOST_ALIKE, most))))
    return found
