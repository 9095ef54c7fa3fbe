"""How far the pools of a running cluster are from what a new plan would make of the same GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.parallelism import gpus_of
from fulcrum.capacity.accelerators import Accelerator
from fulcrum.capacity.roofline import shape_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.placement.inventory import Inventory, Node
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.performance import Performance, Stations, goodput
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import Request, search

_MOST_SPLITS: Final = 32
"""Splits that are asked whether they are better, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForm:
    """A pool that stands: its workers at most, and the roles that these may take."""

    name: str
    accelerator: Accelerator
    tensor: int
    pipeline: int
    data: int = 1
    workers: int
    roles: frozenset[Role]
    price_per_gpu_hour: float = 0.0

    @property
    def gpus(self) -> int:
        """Return the GPUs of all its workers."""
        return self.workers * gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the pools carry within the promise at most, and the plan for the same GPUs."""

    held_goodput: float
    """Requests/s of the pools as they are, in the roles in which they carry most."""
    plan: PlacementPlan

    @property
    def gain(self) -> float:
        """Return by which share the plan carries more; 0 where it carries less."""
        return max(self.plan.goodput / self.held_goodput - 1.0, 0.0)


def compare(
    forms: Sequence[PoolForm], engine: Engine, performance: Performance, *, prompt_tokens: float
) -> Comparison | None:
    """Return the comparison; None where the pools carry nothing at all within the promise. No exact program is solved.

    Raises:
        PlacementError: there is no plan for these GPUs; says what is missing.
    """
    held = held_goodput(forms, engine, performance)
    if held <= 0.0:
        return None
    plan = search(
        Request(
            inventory=inventory_of(forms),
            engine=engine,
            performance=performance,
            prompt_tokens=prompt_tokens,
            exact_gpus=0,
        )
    )
    return Comparison(held_goodput=held, plan=plan)


def inventory_of(forms: Sequence[PoolForm]) -> Inventory:
    """Return the GPUs that the pools may use, in nodes of the usual size of each accelerator."""
    gpus: dict[tuple[Accelerator, float], int] = {}
    for form in forms:
        key = (form.accelerator, form.price_per_gpu_hour)
        gpus[key] = gpus.get(key, 0) + form.gpus
    nodes = []
    for number, ((chip, price), count) in enumerate(gpus.items()):
        for place in range(ceil(count / chip.per_machine)):
            size = min(chip.per_machine, count - place * chip.per_machine)
            nodes.append(Node(name=f"{number}-{place}", accelerator=chip, gpus=size, price_per_gpu_hour=price))
    return Inventory(nodes=tuple(nodes))


def held_goodput(forms: Sequence[PoolForm], engine: Engine, performance: Performance) -> float:
    """Return the most requests/s within the promise that the pools carry in any roles that they may take."""
    speeds = {
        form.name: shape_speed(engine.shape(form.accelerator, form.tensor, form.pipeline, form.data)) for form in forms
    }
    flexible = [form for form in forms if {Role.PREFILL, Role.DECODE} <= form.roles]
    fixed = [form for form in forms if form not in flexible]
    found = _best_split(_Split(forms=fixed, flexible=flexible, speeds=speeds), performance)
    if all(Role.MIXED in form.roles for form in flexible):
        stations = {role: _stations(fixed, speeds, role) for role in (Role.PREFILL, Role.DECODE)}
        mixed = [*_stations(fixed, speeds, Role.MIXED), *((speeds[form.name], form.workers) for form in flexible)]
        together = goodput(performance, prefill=stations[Role.PREFILL], decode=stations[Role.DECODE], mixed=mixed)
        found = max(found, together)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """All splits of flexible pools, those that prefill relatively best first."""

    forms: Sequence[PoolForm]
    flexible: Sequence[PoolForm]
    speeds: Mapping[str, WorkerSpeed]

    def at(self, prefilling: int, order: Sequence[PoolForm]) -> tuple[Stations, Stations]:
        prefill = list(_stations(self.forms, self.speeds, Role.PREFILL))
        decode = list(_stations(self.forms, self.speeds, Role.DECODE))
        for form in order:
            taken = min(prefilling, form.workers)
            prefilling -= taken
            if taken:
                prefill.append((self.speeds[form.name], taken))
            if form.workers - taken:
                decode.append((self.speeds[form.name], form.workers - taken))
        return prefill, decode


def _best_split(split: _Split, performance: Performance) -> float:
    """Return the goodput of the best split, those first in which both roles carry most without waiting."""
    rates = {
        name: tuple(performance.alone([(speed, 1)], role) for role in (Role.PREFILL, Role.DECODE))
        for name, speed in split.speeds.items()
    }
    order = sorted(split.flexible, key=lambda form: -rates[form.name][0] / max(rates[form.name][1], 1e-9))
    by_speed = {split.speeds[name]: rate for name, rate in rates.items()}

    def carried(prefilling: int) -> float:
        prefill, decode = split.at(prefilling, order)
        return min(
            sum(count * by_speed[speed][0] for speed, count in prefill),
            sum(count * by_speed[speed][1] for speed, count in decode),
        )

    most = sum(form.workers for form in order)
    mixed = _stations(split.forms, split.speeds, Role.MIXED)
    found = 0.0
    for prefilling in sorted(range(most + 1), key=carried, reverse=True)[:_MOST_SPLITS]:
        prefill, decode = split.at(prefilling, order)
        found = max(found, goodput(performance, prefill=prefill, decode=decode, mixed=mixed))
    return found


def _stations(forms: Sequence[PoolForm], speeds: Mapping[str, WorkerSpeed], role: Role) -> Stations:
    """Return the pools that have this role only."""
    return [(speeds[form.name], form.workers) for form in forms if form.roles == frozenset({role}) and form.workers]
