"""The placement on unequal GPUs: domains, starts, refinement by bottlenecks, and what is judged best of the ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nextafter

from fulcrum.api.names import Role
from fulcrum.placement.bound import relaxed
from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.diagnosis import explain_none, explain_short
from fulcrum.placement.errors import PlacementError
from fulcrum.placement.exact import exact
from fulcrum.placement.finalists import TOLERANCE, Play, best_played, played_goodput, workers_of
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
FINALISTS = 5
"""Placements that are played, where the caller can play."""
_NEAR = 8
"""Placements for each finalist that are looked at: many have the same workers in other nodes."""
_ROUNDS = 3
"""Searches for the least price: each corrects the estimates by what was played of the one before."""

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
    play: Play | None = None
    """Says what the last placements really carry. None: the estimates decide."""
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
    if request.goal is Goal.LEAST_PRICE and request.play is not None:
        best = _cheapest_played(request, spaces, request.play, on_progress)
    else:
        best = _best(request, spaces, on_progress)
    objective = request.objective
    if request.rate is not None:  # by the estimates, as the bound is
        objective = replace(objective, least_rate=min(request.rate * best.estimate / best.goodput, best.estimate))
    bounds = [space.bound(request.goal, objective) for space in spaces]
    return replace(best, bound=min(bounds) if request.goal is Goal.LEAST_PRICE else max(bounds))


def _best(request: Request, spaces: Sequence[Space], on_progress: OnProgress | None) -> PlacementPlan:
    """Return the best plan of all spaces, as it is played where the caller can play, else by the estimates."""
    found: list[list[PlacementPlan]] = []
    errors: list[PlacementError] = []
    for space in spaces:
        try:
            found.append(_of_space(request, space, on_progress))
        except PlacementError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    worth = partial(_worth, request.goal)
    firsts = sorted((plans[0] for plans in found), key=worth, reverse=True)
    if request.play is None:
        return firsts[0]
    others = sorted((plan for plans in found for plan in plans[1:]), key=worth, reverse=True)
    finalists = _unlike([*firsts, *others])[:FINALISTS]
    _report(on_progress, f"{len(finalists)} of the best are simulated")
    best = best_played(finalists, request.play, request.performance, least_rate=partial(_least_rate, request.goal))
    if best is None:
        raise explain_none(request.inventory, request.engine, request.performance)
    return best


def _unlike(plans: Iterable[PlacementPlan]) -> list[PlacementPlan]:
    """Return the first of all plans that have the same workers: in other nodes they are played alike."""
    found: dict[object, PlacementPlan] = {}
    for plan in plans:
        found.setdefault(tuple((role, frozenset(each)) for role, each in workers_of(plan).items()), plan)
    return list(found.values())


def _cheapest_played(
    request: Request, spaces: Sequence[Space], play: Play, on_progress: OnProgress | None
) -> PlacementPlan:
    """Return the cheapest plan that keeps the rate when it is played; the estimates are corrected by what is played."""
    assert request.rate is not None
    best = _best(replace(request, goal=Goal.MOST_GOODPUT), spaces, on_progress)
    if best.goodput < request.rate:
        raise explain_short(spaces[0].problem, best.goodput, request.rate, request.engine, request.performance)
    best = replace(best, goal=Goal.LEAST_PRICE)
    wanted = request.rate * best.estimate / best.goodput
    for _ in range(_ROUNDS):
        try:
            plan = _best(replace(request, rate=wanted, play=None), spaces, on_progress)
        except PlacementError:
            break  # by the estimates nothing is enough: what carries most is
        goodput = played_goodput(plan, play, request.performance)
        if goodput >= request.rate * (1 - TOLERANCE):
            return min(plan.played(goodput), best, key=lambda each: each.price_per_hour)
        # Whole workers carry more than was wanted by the estimates: what was played is of all that they carry.
        corrected = request.rate * plan.estimate / goodput if goodput > 0.0 else 2.0 * wanted
        wanted = max(corrected, plan.estimate * (1 + TOLERANCE))
    return best


def _role_groups(request: Request) -> list[tuple[Role, ...]]:
    """Return the roles that may stand beside each other: all, or mixed workers apart from the others."""
    if Role.MIXED not in request.roles or len(request.roles) == 1 or request.mixed_beside:
        return [request.roles]
    return [tuple(role for role in request.roles if role is not Role.MIXED), (Role.MIXED,)]


def _worth(goal: Goal, plan: PlacementPlan) -> float:
    if goal is Goal.LEAST_PRICE:
        return -plan.price_per_hour
    return plan.goodput / (plan.price_per_hour or 1.0) if goal is Goal.BEST_RATIO else plan.goodput


def _least_rate(goal: Goal, plan: PlacementPlan, other: PlacementPlan) -> float:
    """Return the goodput with which a plan is worth as much as another one."""
    return _worth(goal, other) * (plan.price_per_hour or 1.0) if goal is Goal.BEST_RATIO else other.goodput


def _of_space(request: Request, space: Space, on_progress: OnProgress | None) -> list[PlacementPlan]:
    """Return the best plans by the estimates, the best one first."""
    if not space.problem.assignments:
        raise explain_none(request.inventory, request.engine, request.performance)
    if request.goal is Goal.BEST_RATIO:
        return _best_ratio(request, space, on_progress)
    return [_planned(request, space, counts) for counts in _searched(request, space, on_progress)]


def _planned(request: Request, space: Space, counts: Counts) -> PlacementPlan:
    return plan_of(
        request.performance,
        space.problem,
        counts,
        goal=request.goal,
        bound=space.bound(request.goal, request.objective),
    )


def _searched(
    request: Request, space: Space, on_progress: OnProgress | None, *, most: Counts | None = None
) -> list[Counts]:
    """Return the counts that are judged best, the best first; `most` carries most, where that is known already."""
    objective, problem = request.objective, space.searched()
    found = _refined(problem, space.parts, objective, on_progress)
    if request.inventory.gpus <= request.exact_gpus:
        found.append(_exact(request, problem, objective, found[0], on_progress))
    ends = [space.counts(end) for end in (*found, *_of_parts(problem, space.parts, objective))]
    _report(on_progress, "both promises together, and queues")
    if judged := _judged(request, space, ends):
        return judged
    if objective.least_rate is None:
        raise explain_short(space.problem, 0.0, request.rate, request.engine, request.performance)
    # Enough for the rate is left where all is used: from there, what is not needed is taken away.
    if most is None:
        most = _searched(replace(request, goal=Goal.MOST_GOODPUT, play=None), space, on_progress)[0]
    judged = _judged(request, space, [most])
    if not judged:
        carried = _planned(replace(request, goal=Goal.MOST_GOODPUT), space, most).goodput
        raise explain_short(space.problem, carried, request.rate, request.engine, request.performance)
    return judged


def _judged(request: Request, space: Space, ends: Iterable[Counts]) -> list[Counts]:
    """Return the best counts, and others that are to be played; none where none is enough."""
    judge = Judge(
        performance=request.performance, problem=space.problem, ceilings=space.ceilings, objective=request.objective
    )
    best = judge.best(ends)
    if best is None:
        return []
    others = judge.near(best)[: _NEAR * FINALISTS] if request.play is not None else []
    return [best, *(each for each in others if each != best)]


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


def _best_ratio(request: Request, space: Space, on_progress: OnProgress | None) -> list[PlacementPlan]:
    """Return the cheapest plans for parts of the most that is possible, that with most goodput per price first."""
    request = replace(request, play=None)  # the best of each part is wanted, and nothing near it
    most = _searched(replace(request, goal=Goal.MOST_GOODPUT), space, on_progress)[0]
    plans = [_planned(request, space, most)]
    for step in range(1, RATIO_STEPS):
        rate = nextafter(plans[0].goodput * step / RATIO_STEPS, 0.0)
        part = replace(request, goal=Goal.LEAST_PRICE, rate=rate)
        plans.append(_planned(request, space, _searched(part, space, on_progress, most=most)[0]))
    return sorted(dict.fromkeys(plans), key=partial(_worth, request.goal), reverse=True)


def _report(on_progress: OnProgress | None, what: str) -> None:
    if on_progress is not None:
        on_progress(what)
