"""The placement on unequal GPUs: domains, start, refinement by bottlenecks, and how far from the bound it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, nextafter

from fulcrum.api.names import Role
from fulcrum.placement.bound import relaxed
from fulcrum.placement.cells import Counts, Problem, problem_of
from fulcrum.placement.diagnosis import explain_none, explain_short
from fulcrum.placement.errors import PlacementError
from fulcrum.placement.exact import exact
from fulcrum.placement.finish import finished
from fulcrum.placement.inventory import Inventory, NodeKind
from fulcrum.placement.objective import Goal, Objective
from fulcrum.placement.parallelism import ROLES, Engine, WorkerOption, options
from fulcrum.placement.partition import Domain, domains
from fulcrum.placement.performance import Performance
from fulcrum.placement.plan import Plan, plan_of
from fulcrum.placement.refine import Refinement, cell_flow
from fulcrum.placement.start import split_start, uniform_start

RATIO_STEPS = 8
"""Rates that are tried for the best goodput per price: so many equal parts of the most that can be carried."""
EXACT_GPUS = 64
"""Up to this many GPUs the exact program is solved, too: below a second."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for."""

    inventory: Inventory
    engine: Engine
    performance: Performance
    prompt_tokens: float
    """Mean tokens of a prompt, whose KV moves."""
    goal: Goal = Goal.MOST_GOODPUT
    rate: float | None = None
    """Requests/s that must be carried, for the least price."""
    most_price: float = inf
    """Price per hour that must not be exceeded."""
    roles: tuple[Role, ...] = ROLES
    mixed_beside: bool = False
    """Mixed workers may stand beside prefill and decode workers. The balance changes all flippable workers to mixed, or
    none, and admission predicts mixed workers beside others badly: so such plans carry 15 to 45 % less."""
    exact_gpus: int = EXACT_GPUS
    """Up to this many GPUs the exact program has the last word; 0: the search alone."""


def search(request: Request, on_progress: OnProgress | None = None) -> Plan:
    """Return the best placement that is found.

    Raises:
        DoesNotFitError, TooSlowError, DisconnectedError, TargetTooHighError: there is none; says what is missing.
    """
    _report(on_progress, "workers that fit and what they carry")
    found = options(request.inventory, request.engine, request.performance)
    if Role.MIXED in request.roles and len(request.roles) > 1 and not request.mixed_beside:
        apart = [role for role in request.roles if role is not Role.MIXED]
        plans = []
        for roles in (tuple(apart), (Role.MIXED,)):
            with suppress(PlacementError):
                plans.append(_of_options(replace(request, roles=roles), found, on_progress))
        if plans:
            return max(plans, key=lambda plan: _worth(request.goal, plan))
    return _of_options(request, found, on_progress)


def _worth(goal: Goal, plan: Plan) -> float:
    if goal is Goal.LEAST_PRICE:
        return -plan.price_per_hour
    return plan.goodput / (plan.price_per_hour or 1.0) if goal is Goal.BEST_RATIO else plan.goodput


def _of_options(
    request: Request, found: dict[NodeKind, tuple[WorkerOption, ...]], on_progress: OnProgress | None
) -> Plan:
    problem, parts = _problem(request, found)
    if not problem.assignments:
        raise explain_none(request.inventory, request.engine, request.performance)
    if request.goal is Goal.BEST_RATIO:
        return _best_ratio(request, problem, parts, on_progress)
    return _searched(request, problem, parts, on_progress)


def _problem(request: Request, found: dict[NodeKind, tuple[WorkerOption, ...]]) -> tuple[Problem, list[list[int]]]:
    """Return the problem, and the numbers of its cells by domain."""

    def holds_both(domain: Domain) -> bool:
        kinds = {node.kind for node in domain}
        each = [option for kind in kinds for option in found.get(kind, ())]
        gpus = sum(node.gpus for node in domain)
        prefill = min((option.gpus for option in each if option.prefill_rate > 0), default=gpus + 1)
        decode = min((option.gpus for option in each if option.decode_rate > 0), default=gpus + 1)
        return prefill + decode <= gpus

    parts = domains(request.inventory, holds_both)
    problem = problem_of(
        request.inventory,
        parts,
        found,
        roles=request.roles,
        kv_bytes_per_request=request.engine.kv_bytes_per_token * request.prompt_tokens,
    )
    domain_of = {node.name: number for number, domain in enumerate(parts) for node in domain}
    numbers: list[list[int]] = [[] for _ in parts]
    for index, cell in enumerate(problem.cells):
        numbers[domain_of[cell.nodes[0].name]].append(index)
    return problem, numbers


def _searched(request: Request, problem: Problem, parts: list[list[int]], on_progress: OnProgress | None) -> Plan:
    objective = Objective(
        least_rate=request.rate if request.goal is Goal.LEAST_PRICE else None, most_price=request.most_price
    )
    ends = _refined(problem, parts, objective, on_progress)
    best = ends[0]
    flow = cell_flow(problem, best)
    most, _ = relaxed(problem, Objective(most_price=request.most_price))
    if flow.rate <= 0.0:
        raise explain_short(problem, most, request.rate, request.engine, request.performance)
    if objective.least_rate is not None and flow.rate < objective.least_rate * (1 - 1e-6):
        best = _exact(request, problem, objective, best, on_progress)
        flow = cell_flow(problem, best)
        if flow.rate < objective.least_rate * (1 - 1e-6):
            raise explain_short(problem, most, request.rate, request.engine, request.performance)
    elif problem.inventory.gpus <= request.exact_gpus:
        best = _exact(request, problem, objective, best, on_progress)
    bound = most if objective.least_rate is None else relaxed(problem, objective)[0]
    _report(on_progress, "queues and routes")
    found = best
    if objective.least_rate is None:
        apart = _of_parts(problem, parts, objective)
        found = finished(request.performance, problem, (best, *ends, *apart), most_price=request.most_price)
    searched = cell_flow(problem, best).rate
    return plan_of(request.performance, problem, found, goal=request.goal, bound=bound, searched_rate=searched)


def _of_parts(problem: Problem, parts: list[list[int]], objective: Objective) -> Iterator[Counts]:
    """Yield the ends of searches among some of the assignments: workers of one size in each cell; GPUs of one kind.

    Queues take more from a few large workers than from many small ones: the flow alone does not compare them well.
    Within a budget one kind of GPU may be all that is worth its money.
    """
    kept = [
        _of_one_size(problem, size) for size in sorted({assignment.option.gpus for assignment in problem.assignments})
    ]
    if objective.most_price < inf:
        kinds = [problem.cells[assignment.cell].kind.accelerator for assignment in problem.assignments]
        kept += [[n for n, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(kinds)]
    for places in kept:
        if len(places) == len(problem.assignments):
            continue
        part = replace(problem, assignments=tuple(problem.assignments[place] for place in places))
        for end in _refined(part, parts, objective, None):
            counts = [0] * len(problem.assignments)
            for place, count in zip(places, end, strict=True):
                counts[place] = count
            yield tuple(counts)


def _of_one_size(problem: Problem, least_gpus: int) -> list[int]:
    """Return the numbers of the assignments with the smallest workers of at least so many GPUs in each cell."""
    sizes: dict[int, int] = {}
    for assignment in problem.assignments:
        if assignment.option.gpus >= least_gpus:
            sizes[assignment.cell] = min(sizes.get(assignment.cell, assignment.option.gpus), assignment.option.gpus)
    return [number for number, c in enumerate(problem.assignments) if c.option.gpus == sizes.get(c.cell)]


def _refined(
    problem: Problem, parts: list[list[int]], objective: Objective, on_progress: OnProgress | None
) -> list[Counts]:
    """Return the ends of searches from several starts, the best first."""
    refinement = Refinement(problem=problem, objective=objective, on_progress=on_progress)
    starts = [split_start(problem, parts), uniform_start(problem, Role.MIXED)]
    if len(parts) > 1:
        starts.append(split_start(problem, [sorted(cell for part in parts for cell in part)]))
    if objective.most_price < inf:
        starts = [start for start in starts if problem.price(start) <= objective.most_price]
        starts.append(relaxed(problem, objective)[1])
    scale = problem.inventory.price_per_hour or 1.0
    ends = [refinement.run(start) for start in dict.fromkeys(starts)]
    return sorted(ends, key=lambda end: -objective.score(cell_flow(problem, end).rate, problem.price(end), scale))


def _exact(
    request: Request, problem: Problem, objective: Objective, best: Counts, on_progress: OnProgress | None
) -> Counts:
    """Return what the exact program finds where it is better."""
    _report(on_progress, "exact program")
    found = exact(problem, least_rate=objective.least_rate, most_price=request.most_price, limit_seconds=10.0)
    if found is None or not problem.fits(found.counts):
        return best
    scale = problem.inventory.price_per_hour or 1.0

    def score(counts: Counts) -> float:
        return objective.score(cell_flow(problem, counts).rate, problem.price(counts), scale)

    return found.counts if score(found.counts) > score(best) else best


def _best_ratio(request: Request, problem: Problem, parts: list[list[int]], on_progress: OnProgress | None) -> Plan:
    """Return the plan with most goodput per price, among the cheapest ones for parts of the most that is possible."""
    most = _searched(replace(request, goal=Goal.MOST_GOODPUT), problem, parts, on_progress)
    plans = [most]
    for step in range(1, RATIO_STEPS):
        part = replace(request, goal=Goal.LEAST_PRICE, rate=nextafter(most.flow_rate * step / RATIO_STEPS, 0.0))
        plans.append(_searched(part, problem, parts, on_progress))
    best = max(plans, key=lambda plan: plan.goodput / plan.price_per_hour if plan.price_per_hour else plan.goodput)
    return replace(best, goal=Goal.BEST_RATIO)


def _report(on_progress: OnProgress | None, what: str) -> None:
    if on_progress is not None:
        on_progress(what)
