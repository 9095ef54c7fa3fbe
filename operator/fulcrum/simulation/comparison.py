"""Policies by name, all on one workload and cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.best_static import best_of, candidates
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Ours, Split, StaticSplit
from fulcrum.simulation.policies.ours import Rehearser
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload

_STATIC: Final = re.compile(r"static-(\d+):(\d+)")

OnProgress = Callable[[str, int], None]
"""Called with the name of a run and how many of its requests have arrived."""
Played = tuple[Policy, Result]
"""A policy, and what came of it."""


class UnknownPolicyError(ValueError):
    """A policy that is not there, or that the cluster is no place for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonInputs:
    """What every policy is compared on: the load, the cluster, and what its spec promises."""

    workload: Workload
    cluster: ClusterModel
    spec: InferenceClusterSpec
    slo: LatencyTargets
    least_turn_seconds: float = 0.0
    """For ours: a coarser control loop is quicker to simulate."""
    rehearser: Callable[[InferenceClusterSpec], Rehearser] | None = None
    """For ours: what answers its plans; None: roles change by estimates."""

    def ours(self, *, name: str = "ours", admission: AdmissionPolicy | None = None) -> Ours:
        """Return the production decisions."""
        return Ours(
            self.spec,
            least_turn_seconds=self.least_turn_seconds,
            admission=admission,
            rehearsals=None if self.rehearser is None else self.rehearser(self.spec),
            name=name,
        )

    @property
    def pool(self) -> str:
        """Return the name of the only pool, or of the first."""
        return self.cluster.pools[0].name

    @property
    def most_workers(self) -> int:
        """Return the most workers of all pools together."""
        return sum(pool.workers.max for pool in self.spec.pools)

    @property
    def admissions(self) -> tuple[AdmissionPolicy, ...]:
        """Return the spec's admission, and none: once, if that is the same."""
        return tuple(dict.fromkeys([self.spec.admission.policy, AdmissionPolicy.OFF]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a policy made of it."""

    name: str
    policy: Policy
    result: Result
    yardstick: bool = False
    """No planner can do that: it knows what comes."""


def _one(_inputs: ComparisonInputs) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """A policy that is chosen by its name."""

    says: str
    """What it is, in one line."""
    run: Callable[[Comparison], Played]
    """Simulate it."""
    runs: Callable[[ComparisonInputs], int] = _one
    """About how many simulations that takes, beside those of the static splits."""
    uses_statics: bool = False
    """It needs the result of every static split."""
    several_pools: bool = False
    least_workers: int = 2
    yardstick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The policies that can be compared."""

    policies: Mapping[str, NamedPolicy]
    most_within: Callable[[ComparisonInputs], int | None] | None = None
    """Return the requests that no planner could have more of inside the SLO; None where that is not known."""

    def find(self, name: str) -> NamedPolicy:
        """Return a policy of the table, or the split of `static-P:D`. Errors: UnknownPolicyError."""
        if name in self.policies:
            return self.policies[name]
        split = _STATIC.fullmatch(name)
        if split is None:
            known = ", ".join(self.policies)
            raise UnknownPolicyError(f"there is no policy {name!r}; there are {known}, static-P:D and all")
        prefill, decode = int(split[1]), int(split[2])
        if not (prefill and decode):
            raise UnknownPolicyError(f"{name}: at least one worker of each role is needed")

        def run(comparison: Comparison) -> Played:
            return comparison.play(StaticSplit(pool=comparison.inputs.pool, prefill=prefill, decode=decode))

        return NamedPolicy(says="that split", run=run, least_workers=1)

    def checked(self, names: Sequence[str], inputs: ComparisonInputs) -> tuple[str, ...]:
        """Return the names without repetition; `all` stands for every one. Errors: UnknownPolicyError."""
        wanted = tuple(dict.fromkeys(each for name in names for each in (self.policies if name == "all" else (name,))))
        for name in wanted:
            found = self.find(name)
            if not found.several_pools and len(inputs.cluster.pools) > 1:
                raise UnknownPolicyError(
                    f"{name} runs clusters of one pool only; of several pools only ours makes sense"
                )
            if inputs.most_workers < found.least_workers:
                raise UnknownPolicyError(f"{name} needs a pool of at least two workers")
        return wanted

    def steps_of(self, names: Sequence[str], inputs: ComparisonInputs) -> int:
        """Return about how many simulations it takes to run these."""
        found = [self.find(name) for name in names]
        searched = any(each.uses_statics for each in found)
        statics = len(inputs.admissions) * len(candidates(inputs.most_workers)) if searched else 0
        return statics + sum(each.runs(inputs) for each in found)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Runs policies one after the other; static splits, which several of them need, are simulated once."""

    inputs: ComparisonInputs
    table: PolicyTable
    on_progress: OnProgress | None = None
    _statics: dict[AdmissionPolicy, dict[Split, Result]] = field(default_factory=dict)

    def run(self, name: str) -> Entry:
        """Run one policy; `name` is one that `checked` has let through."""
        found = self.table.find(name)
        policy, result = found.run(self)
        return Entry(name=name, policy=policy, result=result, yardstick=found.yardstick)

    def play(self, policy: Policy) -> Played:
        """Simulate a policy."""
        inputs, report = self.inputs, self.on_progress
        on_progress = None if report is None else lambda arrived: report(policy.name, arrived)
        return policy, simulate(inputs.workload, inputs.cluster, policy, slo=inputs.slo, on_progress=on_progress)

    def static(self, split: Split, admission: AdmissionPolicy) -> StaticSplit:
        """Return the policy that keeps a split of the pool, with an admission and the spec's classes."""
        classes = self.inputs.spec.admission.classes
        return StaticSplit(
            pool=self.inputs.pool, prefill=split.prefill, decode=split.decode, admission=admission, classes=classes
        )

    def statics(self, admission: AdmissionPolicy) -> Mapping[Split, Result]:
        """Return what comes of every static split with an admission."""
        if admission not in self._statics:
            splits = candidates(self.inputs.most_workers)
            self._statics[admission] = {split: self.play(self.static(split, admission))[1] for split in splits}
        return self._statics[admission]

    def best_static(self) -> tuple[AdmissionPolicy, Split]:
        """Return the best split, with the spec's admission or without any where that serves more."""
        slo = self.inputs.slo
        found = [(admission, best_of(self.statics(admission), slo)) for admission in self.inputs.admissions]
        return max(found, key=lambda each: int(self.statics(each[0])[each[1]].within(slo).sum()))
