"""Policies by name, all on one workload and cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec, Ratio
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.bound import most_within
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Aggregated, Arrow, Dynamo, DynamoMode, Mooncake, Ours, Rejection, Threshold
from fulcrum.simulation.policies.schedule import Schedule, Split
from fulcrum.simulation.policy import Policy, known_speeds
from fulcrum.simulation.result import Result
from fulcrum.simulation.search import (
    WINDOWS_SECONDS,
    OnProgress,
    Setting,
    Step,
    best_of,
    candidates,
    run_splits,
    with_foresight,
)
from fulcrum.simulation.workload import Workload

NAMES: Final = {
    "ours": "the planner, router and admission of the cluster's spec",
    "ours-even": "ours, which begins with half of the workers in each role",
    "ours-informed": "ours, which begins with the split that is the best static one in hindsight, "
    "as best static and Mooncake's rule do",
    "ours-open": "the same planner and router, turning no request away",
    "static": "the best static split, by trying them all; static-3:5 is that one",
    "aggregated": "all workers mixed, with chunked prefill",
    "threshold": "an autoscaler per role at 70 % utilisation",
    "dynamo": "NVIDIA Dynamo's planner, throughput mode",
    "dynamo-load": "NVIDIA Dynamo's planner, load mode",
    "dynamo-both": "NVIDIA Dynamo's planner, both modes",
    "dynamo-aggregated": "NVIDIA Dynamo's planner on mixed workers, both modes",
    "arrow": "the flip rule of Arrow and xLLM",
    "mooncake-baseline": "the best static split, decode load looked at after the prefill",
    "mooncake-early": "the same, decode load looked at on arrival",
    "mooncake-predictive": "the same, decode load predicted on arrival",
    "optimum": "the best schedule found with the whole workload known and flips for free",
}
"""Policies by name, and what they are."""

Rule = AdmissionPolicy | Rejection
"""How a searched run turns requests away."""

_DYNAMO: Final = {
    "dynamo": DynamoMode.THROUGHPUT,
    "dynamo-load": DynamoMode.LOAD,
    "dynamo-both": DynamoMode.BOTH,
    "dynamo-aggregated": DynamoMode.BOTH,
}
_STATIC: Final = re.compile(r"static-(\d+):(\d+)")


class UnknownPolicyError(ValueError):
    """A policy that is not there, or that the cluster is no place for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """What all policies get."""

    workload: Workload
    cluster: ClusterModel
    spec: InferenceClusterSpec
    slo: LatencyTargets
    least_turn_seconds: float = 0.0
    """For ours: a coarser control loop is quicker to simulate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a policy made of it."""

    name: str
    policy: Policy
    result: Result


def checked(names: Sequence[str], arena: Arena) -> tuple[str, ...]:
    """Return the names without repetition; `all` stands for every one. Raises UnknownPolicyError."""
    wanted = list(dict.fromkeys(each for name in names for each in (NAMES if name == "all" else (name,))))
    for name in wanted:
        split = _STATIC.fullmatch(name)
        if name not in NAMES and split is None:
            raise UnknownPolicyError(f"there is no policy {name!r}; there are {', '.join(NAMES)}, static-P:D and all")
        if name not in ("ours", "ours-open") and len(arena.cluster.pools) > 1:
            raise UnknownPolicyError(f"{name} runs clusters of one pool only; of several pools only ours makes sense")
        if split is not None and not (int(split[1]) and int(split[2])):
            raise UnknownPolicyError(f"{name}: at least one worker of each role is needed")
        if name not in ("ours", "ours-open", "aggregated") and split is None and _most_workers(arena) < 2:
            raise UnknownPolicyError(f"{name} needs a pool of at least two workers")
    return tuple(wanted)


def steps_of(names: Sequence[str], arena: Arena) -> int:
    """Return about how many simulations it takes to run these."""
    searched = any(name in ("static", "ours-informed", "optimum") or name.startswith("mooncake") for name in names)
    count = sum(1 for name in names if name not in ("static", "optimum"))
    rules = _rules(arena) if "optimum" in names else _rules(arena)[:-1]
    search = len(candidates(_most_workers(arena))) + (len(WINDOWS_SECONDS) if "optimum" in names else 0)
    return count + (len(rules) * search if searched else 0)


@dataclass(slots=True, kw_only=True)
class Contest:
    """Runs policies one after the other; what several of them need is searched once."""

    arena: Arena
    on_progress: OnProgress | None = None
    _kept: dict[Rule, dict[Split, Result]] = field(default_factory=dict)

    def run(self, name: str) -> Entry:
        """Run one policy; `name` is one that `checked` has let through."""
        if name == "static":
            return self._static()
        if name == "optimum":
            return self._optimum()
        policy = self._policy(name)
        arena, report = self.arena, self.on_progress
        on_progress = None if report is None else lambda arrived: report(policy.name, arrived)
        result = simulate(arena.workload, arena.cluster, policy, slo=arena.slo, on_progress=on_progress)
        return Entry(name=name, policy=policy, result=result)

    def bound(self) -> int:
        """Return how many requests at most could be inside the SLO."""
        arena, pool = self.arena, self.arena.cluster.pools[0]
        return most_within(arena.workload, known_speeds(arena.cluster)[pool.name], _most_workers(arena), arena.slo)

    def kept(self, rule: Rule) -> dict[Split, Result]:
        """Return every static split's result under a rule of admission."""
        if rule not in self._kept:
            self._kept[rule] = run_splits(self._setting(rule), candidates(self._workers), self.on_progress)
        return self._kept[rule]

    @property
    def _workers(self) -> int:
        return _most_workers(self.arena)

    def _setting(self, rule: Rule) -> Setting:
        arena, pool = self.arena, self.arena.cluster.pools[0].name
        classes = arena.spec.admission.classes

        def make(steps: Sequence[Step]) -> Schedule:
            if isinstance(rule, Rejection):
                return Mooncake(pool=pool, splits=steps, rule=rule)
            return Schedule(pool=pool, splits=steps, admission=rule, classes=classes)

        return Setting(workload=arena.workload, cluster=arena.cluster, slo=arena.slo, make=make)

    def _static(self) -> Entry:
        """The best split with the spec's admission, or without any where that serves more."""
        rule, best = self._best_kept()
        policy = self._setting(rule).make([(0.0, best)])
        return Entry(name="static", policy=policy, result=replace(self.kept(rule)[best], policy=f"best static {best}"))

    def _best_kept(self) -> tuple[Rule, Split]:
        """Return the rule and the split with which most requests were inside the SLO."""
        found = [(rule, best_of(self.kept(rule), self.arena.slo)) for rule in _rules(self.arena)[:-1]]
        return max(found, key=lambda each: int(self.kept(each[0])[each[1]].within(self.arena.slo).sum()))

    def _optimum(self) -> Entry:
        """The best schedule under any rule of admission."""
        found = [with_foresight(self._setting(rule), self.kept(rule), self.on_progress) for rule in _rules(self.arena)]
        result, policy = max(found, key=lambda each: int(each[0].within(self.arena.slo).sum()))
        return Entry(name="optimum", policy=policy, result=result)

    def _policy(self, name: str) -> Policy:
        arena, pool, most = self.arena, self.arena.cluster.pools[0], self._workers
        if name in ("ours", "ours-even", "ours-informed", "ours-open"):
            return self._ours(name)
        if name == "aggregated":
            return Aggregated(pool=pool.name, workers=most)
        if (split := _STATIC.fullmatch(name)) is not None:
            return Schedule(pool=pool.name, splits=[(0.0, Split(int(split[1]), int(split[2])))])
        if name.startswith("mooncake-"):
            best = best_of(self.kept(AdmissionPolicy.OFF), arena.slo)
            return Mooncake(pool=pool.name, splits=[(0.0, best)], rule=Rejection(name.removeprefix("mooncake-")))
        prefill, decode = self._start()
        makers: dict[str, Callable[[], Policy]] = {
            "threshold": lambda: Threshold(pool=pool.name, prefill=prefill, decode=decode, most_workers=most),
            "arrow": lambda: Arrow(pool=pool.name, prefill=prefill, decode=decode),
        }
        if name in makers:
            return makers[name]()
        disaggregated = {Role.PREFILL: prefill, Role.DECODE: decode}
        return Dynamo(
            pool=pool.name,
            speed=pool.speed,
            slo=arena.slo,
            begin={Role.MIXED: prefill + decode} if name == "dynamo-aggregated" else disaggregated,
            least_workers=sum(pool.workers.min for pool in arena.spec.pools),
            most_workers=most,
            mode=_DYNAMO[name],
        )

    def _ours(self, name: str) -> Ours:
        arena, spec = self.arena, self.arena.spec
        if name in ("ours-even", "ours-informed"):
            even = self._workers // 2
            best = self._best_kept()[1] if name == "ours-informed" else Split(self._workers - even, even)
            ratio = Ratio(prefill=best.prefill, decode=best.decode)
            spec = msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, ratio=ratio))
            name = f"ours from {best}"
        admission = AdmissionPolicy.OFF if name == "ours-open" else None
        return Ours(spec, least_turn_seconds=arena.least_turn_seconds, admission=admission, name=name)

    def _start(self) -> tuple[int, int]:
        """The split that our plan begins with, where it is one; else half and half."""
        roles = [role for _, role in Ours(self.arena.spec).initial(self.arena.cluster)]
        prefill, decode = roles.count(Role.PREFILL), roles.count(Role.DECODE)
        return (prefill, decode) if prefill and decode else (self._workers // 2, self._workers - self._workers // 2)


def _most_workers(arena: Arena) -> int:
    return sum(pool.workers.max for pool in arena.spec.pools)


def _rules(arena: Arena) -> tuple[Rule, ...]:
    """Return the spec's admission, none (once, if that is the same), and Mooncake's early rejection."""
    return (*dict.fromkeys([arena.spec.admission.policy, AdmissionPolicy.OFF]), Rejection.EARLY)
