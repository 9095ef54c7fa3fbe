"""Every policy by name: those of `fulcrum simulate`, other planners, and foresight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from contests.bound import most_within
from contests.foresight import WINDOWS_SECONDS, Setting, Step, run_splits, with_foresight
from contests.rivals.arrow import Arrow
from contests.rivals.dynamo import Dynamo, DynamoMode
from contests.rivals.mooncake import Mooncake, Rejection
from contests.rivals.schedule import Schedule
from contests.rivals.threshold import Threshold
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import Ratio
from fulcrum.simulation.best_static import best_of, candidates
from fulcrum.simulation.comparison import Comparison, ComparisonInputs, NamedPolicy, Played, PolicyTable
from fulcrum.simulation.named_policies import POLICIES
from fulcrum.simulation.policies import Ours, Split
from fulcrum.simulation.policy import Policy, known_speeds
from fulcrum.simulation.result import Result

Rule = AdmissionPolicy | Rejection
"""How a schedule turns requests away."""


def bound(inputs: ComparisonInputs) -> int | None:
    """Return how many requests at most could be inside the SLO; None for several pools."""
    if len(inputs.cluster.pools) > 1:
        return None
    return most_within(inputs.workload, known_speeds(inputs.cluster)[inputs.pool], inputs.most_workers, inputs.slo)


def _made(make: Callable[[Comparison], Policy]) -> Callable[[Comparison], Played]:
    return lambda comparison: comparison.play(make(comparison))


def _ours_from(split: Split, inputs: ComparisonInputs) -> Ours:
    """Ours, which begins with this split."""
    balance = msgspec.structs.replace(inputs.spec.balance, ratio=Ratio(prefill=split.prefill, decode=split.decode))
    spec = msgspec.structs.replace(inputs.spec, balance=balance)
    return replace(inputs, spec=spec).ours(name=f"ours from {split}")


def _ours_even(comparison: Comparison) -> Policy:
    workers = comparison.inputs.most_workers
    return _ours_from(Split(workers - workers // 2, workers // 2), comparison.inputs)


def _ours_informed(comparison: Comparison) -> Policy:
    return _ours_from(comparison.best_static()[1], comparison.inputs)


def _begin(inputs: ComparisonInputs) -> Split:
    """The split that our plan begins with, where it is one; else half and half."""
    roles = [role for _, role in Ours(inputs.spec).initial(inputs.cluster)]
    prefill, decode = roles.count(Role.PREFILL), roles.count(Role.DECODE)
    half = inputs.most_workers // 2
    return Split(prefill, decode) if prefill and decode else Split(half, inputs.most_workers - half)


def _threshold(comparison: Comparison) -> Policy:
    inputs = comparison.inputs
    begin = _begin(inputs)
    return Threshold(pool=inputs.pool, prefill=begin.prefill, decode=begin.decode, most_workers=inputs.most_workers)


def _arrow(comparison: Comparison) -> Policy:
    begin = _begin(comparison.inputs)
    return Arrow(pool=comparison.inputs.pool, prefill=begin.prefill, decode=begin.decode)


def _dynamo(mode: DynamoMode, *, aggregated: bool = False) -> Callable[[Comparison], Policy]:
    def make(comparison: Comparison) -> Policy:
        inputs = comparison.inputs
        begin = _begin(inputs)
        apart = {Role.PREFILL: begin.prefill, Role.DECODE: begin.decode}
        return Dynamo(
            pool=inputs.pool,
            speed=inputs.cluster.pools[0].speed,
            slo=inputs.slo,
            begin={Role.MIXED: begin.prefill + begin.decode} if aggregated else apart,
            least_workers=sum(pool.workers.min for pool in inputs.spec.pools),
            most_workers=inputs.most_workers,
            mode=mode,
        )

    return make


def _mooncake(rule: Rejection) -> Callable[[Comparison], Policy]:
    def make(comparison: Comparison) -> Policy:
        best = best_of(comparison.statics(AdmissionPolicy.OFF), comparison.inputs.slo)
        return Mooncake(pool=comparison.inputs.pool, splits=[(0.0, best)], rule=rule)

    return make


def _optimum(comparison: Comparison) -> Played:
    """The best schedule with the spec's admission, without any, or with Mooncake's early rejection."""
    inputs = comparison.inputs
    rules: tuple[Rule, ...] = (*inputs.admissions, Rejection.EARLY)
    found = []
    for rule in rules:
        setting = _setting(inputs, rule)
        found.append(with_foresight(setting, _kept(comparison, setting, rule), comparison.on_progress))
    result, policy = max(found, key=lambda each: int(each[0].within(inputs.slo).sum()))
    return policy, result


def _optimum_runs(inputs: ComparisonInputs) -> int:
    """Mixed workers and windows under each rule, and every split with Mooncake's, which no other policy needs."""
    rules = len(inputs.admissions) + 1
    return rules * (1 + len(WINDOWS_SECONDS)) + len(candidates(inputs.most_workers))


def _kept(comparison: Comparison, setting: Setting, rule: Rule) -> Mapping[Split, Result]:
    """What comes of each split, and of mixed workers, when it is kept all the time."""
    mixed = Split(0, 0, comparison.inputs.most_workers)
    if isinstance(rule, Rejection):
        splits = [*candidates(comparison.inputs.most_workers), mixed]
        return run_splits(setting, splits, comparison.on_progress)
    return {**comparison.statics(rule), **run_splits(setting, [mixed], comparison.on_progress)}


def _setting(inputs: ComparisonInputs, rule: Rule) -> Setting:
    def make(steps: Sequence[Step]) -> Schedule:
        if isinstance(rule, Rejection):
            return Mooncake(pool=inputs.pool, splits=steps, rule=rule)
        return Schedule(pool=inputs.pool, splits=steps, admission=rule, classes=inputs.spec.admission.classes)

    return Setting(workload=inputs.workload, cluster=inputs.cluster, slo=inputs.slo, make=make)


def _rival(says: str, make: Callable[[Comparison], Policy], *, uses_statics: bool = False) -> NamedPolicy:
    return NamedPolicy(says=says, run=_made(make), uses_statics=uses_statics)


CONTESTANTS: Final = PolicyTable(
    policies={
        "ours": POLICIES.policies["ours"],
        "ours-even": _rival("ours, which begins with half of the workers in each role", _ours_even),
        "ours-informed": _rival(
            "ours, which begins with the split that is the best static one in hindsight, as best static and "
            "Mooncake's rule do",
            _ours_informed,
            uses_statics=True,
        ),
        **{name: POLICIES.policies[name] for name in ("ours-open", "static", "aggregated")},
        "threshold": _rival("an autoscaler per role at 70 % utilisation", _threshold),
        "dynamo": _rival("NVIDIA Dynamo's planner, throughput mode", _dynamo(DynamoMode.THROUGHPUT)),
        "dynamo-load": _rival("NVIDIA Dynamo's planner, load mode", _dynamo(DynamoMode.LOAD)),
        "dynamo-both": _rival("NVIDIA Dynamo's planner, both modes", _dynamo(DynamoMode.BOTH)),
        "dynamo-aggregated": _rival(
            "NVIDIA Dynamo's planner on mixed workers, both modes", _dynamo(DynamoMode.BOTH, aggregated=True)
        ),
        "arrow": _rival("the flip rule of Arrow and xLLM", _arrow),
        "mooncake-baseline": _rival(
            "the best static split, decode load looked at after the prefill",
            _mooncake(Rejection.BASELINE),
            uses_statics=True,
        ),
        "mooncake-early": _rival(
            "the same, decode load looked at on arrival", _mooncake(Rejection.EARLY), uses_statics=True
        ),
        "mooncake-predictive": _rival(
            "the same, decode load predicted on arrival", _mooncake(Rejection.PREDICTIVE), uses_statics=True
        ),
        "optimum": NamedPolicy(
            says="the best schedule found with the whole workload known and flips for free",
            run=_optimum,
            runs=_optimum_runs,
            uses_statics=True,
            yardstick=True,
        ),
    },
    most_within=bound,
)
