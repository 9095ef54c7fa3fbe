"""The placement on unequal GPUs: domains, starts, refinement by bottlenecks, and what is judged best of the ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, nextafter

from fulcrum.api.names import Role
from fulcrum.placement.bound import relaxed
from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.diagnosis import explain_none, explain_short
from fulcrum.placement.errors import PlacementError
from fulcrum.placement.exact import exact
from fulcrum.placement.finish import Judge
from fulcrum.placement.inventory import Inventory
from fulcrum.placement.objective import Goal, Objective
from fulcrum.placement.parallelism import ROLES, Engine
from fulcrum.placement.performance import Performance
from fulcrum.placement.plan import PlacementPlan, plan_of
from fulcrum.placement.refine import Refinement, cell_flow
from fulcrum.placement.space import Space, spaces_of
from fulcrum.placement.start import split_start, uniform_start

RATIO_STEPS = 8
"""Rates that are tried for the best goodput per price: so many equal parts of the most that can be carried."""
EXACT_GPUS = 64
"""Up to this many GPUs the exact program is solved, too: below a second."""
MOST_DIVISIONS = 3
"""Divisions of the misses whose flow is searched where the exact program is solved."""
FEW_DIVISIONS = 2
"""The same for more GPUs, whose refinement takes seconds: those that carry most with parts of workers."""

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
    """Up to this many GPUs the exact program is asked, too; 0: the search alone."""

    @property
    def objective(self) -> Objective:
        """Return how placements compare."""
        return Objective(least_rate=self.rate if self.goal is Goal.LEAST_PRICE else None, most_price=self.most_price)


def search(request: Request, on_progress: OnProgress | None = None) -> PlacementPlan:
    """Return the best placement that is found.

    Raises:
        DoesNotFitError, TooSlowError, DisconnectedError, TargetTooHighError: there is none; says what is missing.
    """
    _report(on_progress, "workers that fit and what they carry")
    spaces = spaces_of(
        request.inventory, request.engine, request.performance, _role_groups(request), request.prompt_tokens
    )
    plans: list[PlacementPlan] = []
    errors: list[PlacementError] = []
    for space in spaces:
        try:
            plans.append(_of_space(request, space, on_progress))
        except PlacementError as error:
            errors.append(error)
    if not plans:
        raise errors[0]
    best = max(plans, key=lambda plan: _worth(request.goal, plan))
    bounds = [space.bound(request.goal, request.objective) for space in spaces]
    return replace(best, bound=min(bounds) if request.goal is Goal.LEAST_PRICE else max(bounds))


def _role_groups(request: Request) -> list[tuple[Role, ...]]:
    """Return the roles that may stand beside each other: all, or mixed workers apart from the others."""
    if Role.MIXED not in request.roles or len(request.roles) == 1 or request.mixed_beside:
        return [request.roles]
    return [tuple(role for role in request.roles if role is not Role.MIXED), (Role.MIXED,)]


def _worth(goal: Goal, plan: PlacementPlan) -> float:
    if goal is Goal.LEAST_PRICE:
        return -plan.price_per_hour
    return plan.goodput / (plan.price_per_hour or 1.0) if goal is Goal.BEST_RATIO else plan.goodput


def _of_space(request: Request, space: Space, on_progress: OnProgress | None) -> PlacementPlan:
    if not space.problem.assignments:
        raise explain_none(request.inventory, request.engine, request.performance)
    if request.goal is Goal.BEST_RATIO:
        return _best_ratio(request, space, on_progress)
    return _planned(request, space, _searched(request, space, on_progress))


def _planned(request: Request, space: Space, counts: Counts) -> PlacementPlan:
    return plan_of(
        request.performance,
        space.problem,
        counts,
        goal=request.goal,
        bound=space.bound(request.goal, request.objective),
    )


def _searched(request: Request, space: Space, on_progress: OnProgress | None, *, most: Counts | None = None) -> Counts:
    """Return the counts that are judged best; `most` carries most, where that is known already."""
    objective = request.objective
    small = request.inventory.gpus <= request.exact_gpus
    ends: list[Counts] = []
    divisions = 1 if most is not None else MOST_DIVISIONS if small else FEW_DIVISIONS
    for problem in space.likely(request.most_price, divisions):
        found = _refined(problem, space.parts, objective, on_progress)
        if small:
            found.append(_exact(request, problem, objective, found[0], on_progress))
        ends += [space.counts(problem, end) for end in (*found, *_of_parts(problem, space.parts, objective))]
    _report(on_progress, "both promises together, and queues")
    counts, carried = _judged(request, space, ends)
    if counts is not None and carried > 0.0:
        return counts
    if objective.least_rate is None:
        raise explain_short(space.problem, 0.0, request.rate, request.engine, request.performance)
    # Enough for the rate is left where all is used: from there, what is not needed is taken away.
    if most is None:
        most = _searched(replace(request, goal=Goal.MOST_GOODPUT), space, on_progress)
    counts, _ = _judged(request, space, [most])
    if counts is None:
        carried = _planned(replace(request, goal=Goal.MOST_GOODPUT), space, most).goodput
        raise explain_short(space.problem, carried, request.rate, request.engine, request.performance)
    return counts


def _judged(request: Request, space: Space, ends: Iterable[Counts]) -> tuple[Counts | None, float]:
    judge = Judge(
        performance=request.performance, problem=space.problem, ceilings=space.ceilings, objective=request.objective
    )
    return judge.best(ends)


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


def _best_ratio(request: Request, space: Space, on_progress: OnProgress | None) -> PlacementPlan:
    """Return the plan with most goodput per price, among the cheapest ones for parts of the most that is possible."""
    most = _searched(replace(request, goal=Goal.MOST_GOODPUT), space, on_progress)
    plans = [_planned(request, space, most)]
    for step in range(1, RATIO_STEPS):
        rate = nextafter(plans[0].goodput * step / RATIO_STEPS, 0.0)
        part = replace(request, goal=Goal.LEAST_PRICE, rate=rate)
        plans.append(_planned(request, space, _searched(part, space, on_progress, most=most)))
    return max(plans, key=lambda plan: plan.goodput / plan.price_per_hour if plan.price_per_hour else plan.goodput)


def _report(on_progress: OnProgress | None, what: str) -> None:
    if on_progress is not None:
        on_progress(what)
