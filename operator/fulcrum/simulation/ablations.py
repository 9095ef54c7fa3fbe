"""Rules and tuning constants of the decision core, each with the value at which it does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from importlib import import_module
from math import inf
from typing import Any, Final

import msgspec

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec


class CompiledError(RuntimeError):
    """The core is compiled, so that its constants are built in. Says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A module's constant and its neutral value."""

    module: str
    """Below `fulcrum`."""
    name: str
    """A name of the module, or an entry of its `TUNING` as `TUNING.entry`."""
    neutral: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One rule or tuning entry."""

    name: str
    says: str
    """What is without it."""
    constants: tuple[Constant, ...] = ()
    observe: bool = False
    """The planner changes nothing."""
    admits_all: bool = False

    def spec(self, spec: InferenceClusterSpec) -> InferenceClusterSpec:
        """Return the spec without the rule, where the rule can be switched off there."""
        if self.observe:
            spec = _with(spec, "balance", mode="Observe")
        if self.admits_all:
            spec = _with(spec, "admission", policy=AdmissionPolicy.OFF)
        return spec


@contextmanager
def switched_off(ablation: Ablation) -> Iterator[None]:
    """Switch a rule off in this process.

    Raises:
        CompiledError: the core is compiled.
        LookupError: there is no such constant any more.
    """
    changed: list[tuple[Any, str, Any]] = []
    try:
        for constant in ablation.constants:
            home = import_module(f"fulcrum.{constant.module}")
            if not str(home.__file__).endswith(".py"):
                raise CompiledError(f"{home.__name__} is compiled: run the ablation from a checkout without libraries")
            name, _, entry = constant.name.partition(".")
            old = getattr(home, name, None)
            if old is None or (entry and not hasattr(old, entry)):
                raise LookupError(
                    f"{home.__name__} has no {constant.name}: take it out of ABLATIONS, or rename it there"
                )
            value = replace(old, **{entry: constant.neutral}) if entry else constant.neutral
            for module, alias in [(home, name), *_importers(name, old)]:
                changed.append((module, alias, old))
                setattr(module, alias, value)
        yield
    finally:
        for module, name, old in reversed(changed):
            setattr(module, name, old)


def _importers(name: str, value: object) -> list[tuple[Any, str]]:
    """Modules that have taken a public constant over by its name, or a `Tuning` by any name, and that name."""
    if name.startswith("_"):
        return []
    return [
        (module, alias)
        for path, module in list(sys.modules.items())
        if path.startswith("fulcrum.")
        for alias, taken in list(vars(module).items())
        if taken is value and (alias == name or is_dataclass(value))
    ]


def _with(spec: InferenceClusterSpec, part: str, **fields: Any) -> InferenceClusterSpec:
    document = msgspec.to_builtins(spec)
    document.setdefault(part, {}).update(fields)
    return msgspec.convert(document, InferenceClusterSpec)


def _one(room: str, name: str, neutral: Any, says: str) -> Ablation:
    """One constant; `room` is its module."""
    return Ablation(name=f"{room}.{name}", says=says, constants=(Constant(module=room, name=name, neutral=neutral),))


ABLATIONS: Final = (
    Ablation(name="planner", says="The layout that a new cluster begins with stays.", observe=True),
    Ablation(name="admission", says="No request is turned away.", admits_all=True),
    Ablation(
        name="margins",
        says="Predictions are believed as they are.",
        constants=(Constant(module="routing.tuning", name="TUNING.most_wrong", neutral=1.0),),
    ),
    _one("admission.tuning", "TUNING.overflow", inf, "Answers may be expected to outgrow the KV cache."),
    _one("routing.tuning", "TUNING.miss_weight", 0.0, "A promise that is missed weighs no more than one that is kept."),
    _one("routing.tuning", "TUNING.trusted", 0.99, "Estimates may fill all of a limit."),
    _one("routing.tuning", "TUNING.least_left", 0.001, "Answers end when they are expected to."),
    _one("balance.tuning", "TUNING.immediate_cost", 0.0, "A flip costs nothing."),
    _one("balance.tuning", "TUNING.estimate_error", 0.0, "Estimates of layouts are believed as they are."),
    _one("balance.tuning", "TUNING.noise_sigmas", 0.0, "What is measured is taken for the truth."),
    _one("load.tuning", "TUNING.sigmas", 0.0, "What is measured of lengths and bursts is taken for the truth."),
    _one("performance.tuning", "TUNING.mixed_chosen", 0.5, "Mixed workers in an overload are valued halfway."),
    _one("performance.tuning", "TUNING.shortest_first", 0.0, "Early rejection is estimated as if by chance."),
    _one("balance.tuning", "TUNING.spared_misses", 0.0, "Workers are given back as soon as the others suffice."),
    _one("balance.tuning", "TUNING.unhelped_misses", 0.0, "Queues may add nothing to misses that no worker can help."),
)
"""Every entry has to buy something over random scenarios (`benchmarks/ablation.py`)."""
