"""Which workers a node can hold: every parallelism that fits memory and promise, and the load that each carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

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
from fulcrum.placement.inventory import Inventory, NodeKind
from fulcrum.placement.performance import Performance

MOST_ALIKE: Final = 8
"""Workers in the pool by which a single worker's rate is judged. More gain little by sharing one queue: under 3 %."""
_TENSOR: Final = (1, 2, 4, 8, 16)
"""Powers of two, so that any set of workers whose GPUs add up to a node's packs into it."""
_PIPELINE: Final = (1, 2, 4, 8)
_DATA: Final = (2, 4, 8, 16)


class Form(NamedTuple):
    """How one worker spreads over GPUs."""

    tensor: int
    pipeline: int
    data: int = 1

    @property
    def gpus(self) -> int:
        """Return the GPUs of one worker."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)

    def __str__(self) -> str:
        """Return it as a sentence has it."""
        return f"tensor {self.tensor} and " + (f"data {self.data}" if self.data > 1 else f"pipeline {self.pipeline}")


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

    def shape(self, gpu: Accelerator, tensor: int, pipeline: int, data: int = 1) -> EngineShape:
        """Return one worker; ranks of data parallel share whole experts, over the back end of workers that flip.

        Raises EngineShapeError where the parallelism does not fit the model.
        """
        shape = EngineShape(
            model=self.model,
            accelerator=gpu,
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            experts=data > 1,
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

    def serves(self, form: Form, role: Role) -> bool:
        """Report whether workers of a form can take a role."""
        return role is Role.MIXED or form.pipeline == 1 or self.transfers_from_stages

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
    def form(self) -> Form:
        """Return how it spreads over its GPUs."""
        return Form(self.tensor, self.pipeline, self.data)

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

    def scaled(self, scales: Mapping[Role, float]) -> WorkerOption:
        """Return it with its rates multiplied, by role."""
        return replace(
            self,
            prefill_rate=self.prefill_rate * scales[Role.PREFILL],
            decode_rate=self.decode_rate * scales[Role.DECODE],
            mixed_rate=self.mixed_rate * scales[Role.MIXED],
        )


Options = dict[NodeKind, tuple[WorkerOption, ...]]
"""The workers that nodes of each kind can hold."""

ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)
_Rates = dict[Role, float]
"""Requests/s of one worker by role."""


def forms(model: ModelConfig) -> list[Form]:
    """Return the forms of workers that are considered; ranks for mixtures of experts alone."""
    found = [Form(tensor, pipeline) for tensor in _TENSOR for pipeline in _PIPELINE]
    return found + [Form(tensor, 1, data) for tensor in _TENSOR for data in _DATA if model.moe is not None]


def shapes(kind: NodeKind, engine: Engine) -> list[tuple[Form, WorkerSpeed]]:
    """Return form and speed of every worker that fits into the memory of a node of this kind."""
    found = []
    for form in forms(engine.model):
        if form.gpus > kind.gpus or kind.accelerator is CPU:
            continue
        try:
            speed = engine.speed(engine.shape(kind.accelerator, *form))
        except EngineShapeError:
            continue
        if speed.kv_capacity_tokens >= max(engine.max_model_tokens, 1):
            found.append((form, speed))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The workers that nodes of each kind can hold, which keep the promise in at least one role."""

    alone: Options
    """With what a worker carries among a few alike ones."""
    most: Options
    """With what no worker exceeds, whatever stands beside it."""


def choices(inventory: Inventory, engine: Engine, performance: Performance) -> Choices:
    """Return what a search chooses from."""
    kinds = inventory.kinds()
    gpus: dict[Accelerator, int] = {}
    for kind, nodes in kinds.items():
        chip = chip_of(kind.accelerator)
        gpus[chip] = gpus.get(chip, 0) + len(nodes) * kind.gpus
    # What a worker carries depends on its GPUs and not on price, place or the size of its node.
    rated: dict[tuple[Accelerator, Form], tuple[_Rates, _Rates]] = {}
    for kind in kinds:
        for form, speed in shapes(kind, engine):
            key = (chip_of(kind.accelerator), form)
            if key not in rated:
                roles = [role for role in ROLES if engine.serves(form, role)]
                alike = min(MOST_ALIKE, max(1, gpus[key[0]] // form.gpus))
                rated[key] = (
                    {role: performance.alone([(speed, alike)], role) / alike for role in roles},
                    {role: performance.most(speed, role, inventory.gpus) for role in roles},
                )
    found = Choices(alone={}, most={})
    for kind in kinds:
        for form, speed in shapes(kind, engine):
            alone, most = rated[chip_of(kind.accelerator), form]
            if max(alone.values()) > 0.0:
                for options, rates in ((found.alone, alone), (found.most, most)):
                    options[kind] = (*options.get(kind, ()), _option(kind, form, speed, rates))
    return found


def chip_of(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without the size of its node."""
    return replace(accelerator, per_machine=0)


def _option(kind: NodeKind, form: Form, speed: WorkerSpeed, rates: _Rates) -> WorkerOption:
    return WorkerOption(
        kind=kind,
        tensor=form.tensor,
        pipeline=form.pipeline,
        data=form.data,
        speed=speed,
        prefill_rate=rates.get(Role.PREFILL, 0.0),
        decode_rate=rates.get(Role.DECODE, 0.0),
        mixed_rate=rates.get(Role.MIXED, 0.0),
    )
