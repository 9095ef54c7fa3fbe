"""Ours against every other way to run the same scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from contests.ablations import Ablation, switched_off
from contests.rivals.mooncake import Mooncake, Rejection
from contests.rivals.threshold import Threshold
from contests.scenarios import Scenario, layouts
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.simulated import Rehearsals
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Fixed, Ours, Split
from fulcrum.simulation.policies.fixed import layout_name
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.result import Result, Summary
from fulcrum.simulation.workload import Workload

TURN_SECONDS: Final = 2.0
"""Shortest time between two turns of the planner, as its tick is."""
COLD_SECONDS: Final = 120.0
"""Without a load to learn from ours begins as any new cluster does; its rivals know the load before it comes."""
UTILISATIONS: Final = (0.4, 0.55, 0.7, 0.85)
"""What the threshold autoscaler is run with; the cheapest of those that serve as many as ours counts."""
SAME: Final = 0.005
"""Attainments that are nearer than that are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one policy came to."""

    summary: Summary
    settled: float
    """Attainment of the requests that came after the first `COLD_SECONDS`."""

    @classmethod
    def of(cls, result: Result, slo: LatencyTargets) -> Self:
        """Return what a simulation came to."""
        settled = result.within(slo)[result.workload.arrival_seconds >= COLD_SECONDS]
        return cls(summary=result.summary(slo), settled=float(settled.mean()) if len(settled) else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a scenario came to. Attainments are shares of all requests, 0 to 1."""

    scenario: Scenario
    ours: Run
    best: str
    """The rival that ours is compared with."""
    best_attainment: float
    best_gpu_hours: float
    best_static_attainment: float
    """Of all rivals whose workers keep their roles and that turn no request away or use our admission."""
    best_settled: float
    """The most that any rival attained after the first `COLD_SECONDS`; with moving workers, that rival."""
    ratio: float
    """Higher is better. Fixed workers: ours over the best rival's attainment. Moving workers: GPU-hours of the cheapest
    rival with the same attainment over ours; where none has it, 1 and how much ours attains more."""

    @property
    def settled_ratio(self) -> float:
        """Ours over the best rival without the first `COLD_SECONDS`."""
        return self.ours.settled / self.best_settled if self.best_settled else 1.0


def judged(scenario: Scenario, *, rehearsed: bool = False) -> Judged:
    """Run ours and its rivals; `rehearsed`: with roles chosen by rehearsal."""
    ours = run_rehearsed(scenario) if rehearsed else run_ours(scenario)
    return _of_moving(scenario, ours) if scenario.moving else _of_fixed(scenario, ours)


def run_ours(scenario: Scenario, *, without: Ablation | None = None) -> Run:
    """Run the production planner, router and admission alone; all of it, or without one rule."""
    load, cluster = scenario.workload(), scenario.cluster()
    if without is None:
        return _run(scenario, load, cluster, ours_of(scenario))
    with switched_off(without):
        policy = Ours(without.spec(scenario.spec()), least_turn_seconds=TURN_SECONDS)
        return _run(scenario, load, cluster, policy)


def run_rehearsed(scenario: Scenario) -> Run:
    """Run ours with roles chosen by rehearsal."""
    return _run(scenario, scenario.workload(), scenario.cluster(), ours_of(scenario, rehearsed=True))


def ours_of(scenario: Scenario, *, rehearsed: bool = False) -> Ours:
    """Return ours as it is judged; `rehearsed`: with roles chosen by rehearsal."""
    spec = scenario.spec()
    rehearsals = Rehearsals(spec) if rehearsed else None
    return Ours(spec, least_turn_seconds=TURN_SECONDS, rehearsals=rehearsals)


def rivals(scenario: Scenario) -> Iterator[tuple[str, Callable[[], Policy], bool]]:
    """Yield name, maker, and whether it is a static layout: every one with and without admission, and Mooncake's rule.

    Mooncake's rule knows clusters of one pool only, with prefill and decode apart.
    """
    pool, classes = scenario.pools[0].name, scenario.spec().admission.classes
    for workers in layouts(scenario):
        name = layout_name(workers)
        for rule in (AdmissionPolicy.OFF, AdmissionPolicy.PREDICTIVE):
            yield f"{name} {rule.value}", partial(Fixed, workers, admission=rule, classes=classes), True
        split = Split(*(sum(role is wanted for _, role in workers) for wanted in (Role.PREFILL, Role.DECODE)))
        if len(scenario.pools) == 1 and split.prefill and split.decode:
            make = partial(Mooncake, pool=pool, splits=[(0.0, split)], rule=Rejection.PREDICTIVE)
            yield f"{name} Mooncake", make, False


def _of_fixed(scenario: Scenario, ours: Run) -> Judged:
    load, cluster = scenario.workload(), scenario.cluster()
    found = [(name, static, _run(scenario, load, cluster, make())) for name, make, static in rivals(scenario)]
    best, _, rival = max(found, key=lambda each: each[2].summary.attainment)
    attainment = rival.summary.attainment
    return Judged(
        scenario=scenario,
        ours=ours,
        best=best,
        best_attainment=attainment,
        best_gpu_hours=rival.summary.gpu_hours,
        best_static_attainment=max(one.summary.attainment for _, static, one in found if static),
        best_settled=max(one.settled for _, _, one in found),
        ratio=ours.summary.attainment / attainment if attainment else 1.0,
    )


def _of_moving(scenario: Scenario, ours: Run) -> Judged:
    load, cluster, pool = scenario.workload(), scenario.cluster(), scenario.pools[0]
    half = max(1, min(2, scenario.workers) // 2)
    found = [
        _run(
            scenario,
            load,
            cluster,
            Threshold(pool=pool.name, prefill=half, decode=half, most_workers=pool.workers, utilisation=utilisation),
        )
        for utilisation in UTILISATIONS
    ]
    mine = ours.summary
    equal = [one for one in found if one.summary.attainment >= mine.attainment - SAME]
    run = (
        min(equal, key=lambda one: one.summary.gpu_hours)
        if equal
        else max(found, key=lambda one: one.summary.attainment)
    )
    rival = run.summary
    return Judged(
        scenario=scenario,
        ours=ours,
        best=rival.policy,
        best_attainment=rival.attainment,
        best_gpu_hours=rival.gpu_hours,
        best_static_attainment=0.0,
        best_settled=run.settled,
        ratio=rival.gpu_hours / mine.gpu_hours if equal else 1 + mine.attainment - rival.attainment,
    )


def _run(scenario: Scenario, load: Workload, cluster: ClusterModel, policy: Policy) -> Run:
    slo = scenario.slo()
    return Run.of(simulate(load, cluster, policy, slo=slo), slo)
