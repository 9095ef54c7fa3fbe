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
        LookupError: there is no such constant any more.
    """
    changed: list[tuple[Any, str, Any]] = []
    try:
        for constant in ablation.constants:
            home = import_module(f"fulcrum.{constant.module}")
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
    # Rules: the value at which they do nothing.
    _one("admission.tuning", "TUNING.margin_rate", 0.0, "Predictions are believed as they are."),
    _one("admission.tuning", "TUNING.overflow", inf, "Answers may be expected to outgrow the KV cache."),
    _one("routing.tuning", "TUNING.miss_weight", 0.0, "A promise that is missed weighs no more than one that is kept."),
    _one("routing.tuning", "TUNING.estimate_share", 0.99, "Estimates may fill all of a limit."),
    _one("routing.tuning", "TUNING.least_left", 0.001, "Answers end when they are expected to."),
    _one("routing.tuning", "TUNING.most_holders", 1, "Only the latest holder of a prefix is known."),
    _one("routing.tuning", "TUNING.outlier_share", 1.0, "No worker is an outlier by failures alone."),
    _one("routing.tuning", "TUNING.first_pause_seconds", 0.0, "A worker that failed is tried again at once."),
    _one("decide.tuning", "TUNING.noise_sigmas", 0.0, "What is measured is taken for the truth."),
    _one("decide.tuning", "TUNING.spared_misses", 0.0, "Workers are given back as soon as the others suffice."),
    _one("decide.tuning", "TUNING.route_change", 0.0, "Each change of a KV route is written."),
    _one("decide.tuning", "TUNING.clock_skew_seconds", 0.0, "All clocks are taken for the same."),
    _one("decide.tuning", "TUNING.deadline_margin_seconds", 0.0, "A start is given up as soon as it may be."),
    _one("decide.tuning", "TUNING.sure_failures", 1, "A worker is restarted after one failed canary."),
    _one("decide.tuning", "TUNING.settled_seconds", 0.0, "A worker may be restarted at once."),
    _one("decide.tuning", "TUNING.silent_seconds", 0.0, "A silent gateway wakes a cluster at once."),
    _one("decide.tuning", "TUNING.expected_change_seconds", 0.0, "Each change of an expected time is written."),
    _one("decide.tuning", "TUNING.unmade_seconds", 0.0, "A Pod that is not made at once is a condition."),
    _one("decide.tuning", "TUNING.rejections_end", 1.0, "A condition for rejections ends where it begins."),
    _one("decide.tuning", "TUNING.rejections_least", 0.0, "One rejection of one request is a condition."),
    _one("load.tuning", "TUNING.sigmas", 0.0, "What is measured of bursts is taken for the truth."),
    _one("load.tuning", "TUNING.least_seen", 1, "One request is enough to speak of a load."),
    _one(
        "load.tuning", "TUNING.newest_parts", (0.5,), "After a pause, a load is looked for in one part of the window."
    ),
    _one("load.tuning", "TUNING.steady_requests", 1e-3, "Expected lengths are corrected by the window alone."),
    # Sizes, which must have a value: half of it, or twice as coarse.
    _one("admission.tuning", "TUNING.usual_output_tokens", 128.0, "First answers are guessed half as long."),
    _one("admission.tuning", "TUNING.demand_seconds", 10.0, "Demand of classes is remembered half as long."),
    _one("admission.tuning", "TUNING.pass_share", 0.04, "The queue is looked through half as often."),
    _one("admission.tuning", "TUNING.pass_refusals", 2, "Half as many that wait are tried at a time."),
    _one("routing.tuning", "TUNING.most_wrong", 1.5, "Half as much is an error of a prediction."),
    _one("routing.tuning", "TUNING.memory_seconds", 5.0, "Workers are remembered half as long."),
    _one("routing.tuning", "TUNING.recent_requests", 25, "Means and margins are learned from half as many."),
    _one("routing.tuning", "TUNING.bytes_per_token", 2.0, "First prompts are guessed twice as long."),
    _one("routing.tuning", "TUNING.first_prefix_bytes", 256, "Shorter prefixes are compared."),
    _one("routing.tuning", "TUNING.prefixes_per_doubling", 4, "Half as many prefixes are compared."),
    _one("routing.tuning", "TUNING.longest_pause_seconds", 15.0, "What failed is tried again twice as soon."),
    _one("decide.tuning", "TUNING.tick_seconds", 4.0, "A cluster is looked at half as often."),
    _one("decide.tuning", "TUNING.resync_seconds", 600.0, "A quiet cluster is looked at half as often."),
    _one("decide.tuning", "TUNING.drain_poll_seconds", 1.0, "A draining worker is asked half as often."),
    _one("decide.tuning", "TUNING.start_seconds", 60.0, "Pods are taken to start twice as fast."),
    _one("load.tuning", "TUNING.window_seconds", 15.0, "Loads are averaged over half of the time."),
    _one("load.tuning", "TUNING.memory_seconds", 150.0, "Spread and bursts are measured over half of the time."),
    _one("load.tuning", "TUNING.span_seconds", 4.0, "Arrivals are counted in spans twice as long."),
)
"""Every entry of every Tuning (`benchmarks/ablation.py`).

What the scenarios have nothing of (failures, clocks that differ, lost events) changes nothing there.
"""
