"""The last step of a search for most goodput: the flow counts no queues, so its best ends are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.flow import Flow
from fulcrum.placement.performance import Performance, goodput
from fulcrum.placement.refine import cell_flow

MOST_CHANGES: Final = 12
"""Changes of roles that are kept at most."""
MOST_TRIED: Final = 96
"""Placements whose goodput is computed at most: about 20 ms each."""
_GAIN: Final = 0.005
"""Share of the goodput below which a change is within the error of the search for a rate."""


def finished(performance: Performance, problem: Problem, ends: Iterable[Counts], *, most_price: float) -> Counts:
    """Return the placement with most goodput, queues included, of the ends and of what a few changes of roles make."""
    known: dict[Counts, float] = {}

    def carried(counts: Counts) -> float:
        if counts not in known:
            known[counts] = placed_goodput(performance, problem, counts, cell_flow(problem, counts))
        return known[counts]

    affordable = [end for end in dict.fromkeys(ends) if problem.price(end) <= most_price * (1 + 1e-9)]
    best = max(affordable, key=carried)
    for _ in range(MOST_CHANGES):
        better = _better(best, carried, _role_changes(problem, best), known)
        if better is None:
            break
        best = better
    return best


def placed_goodput(performance: Performance, problem: Problem, counts: Counts, flow: Flow) -> float:
    """Return requests/s within the promise, queues included; no more than links let through where they are full."""
    stations: dict[Role, dict[WorkerSpeed, int]] = {role: {} for role in Role}
    for count, assignment in zip(counts, problem.assignments, strict=True):
        if count:
            of_role = stations[assignment.role]
            of_role[assignment.option.speed] = of_role.get(assignment.option.speed, 0) + count
    prefill, decode, mixed = (
        [(speed, count) for speed, count in stations[role].items()] for role in (Role.PREFILL, Role.DECODE, Role.MIXED)
    )
    found = goodput(performance, prefill=prefill, decode=decode, mixed=mixed)
    return min(found, flow.rate) if flow.cut is not None and flow.cut.link_names else found


def _better(
    present: Counts, carried: Callable[[Counts], float], changes: Iterator[Counts], known: dict[Counts, float]
) -> Counts | None:
    least = carried(present) * (1 + _GAIN)
    best: Counts | None = None
    for changed in changes:
        if len(known) >= MOST_TRIED:
            break
        if changed not in known and carried(changed) > least:
            best, least = changed, carried(changed)
    return best


def _role_changes(problem: Problem, counts: Counts) -> Iterator[Counts]:
    """Yield the placements in which some workers of one form take another role."""
    for old, assignment in enumerate(problem.assignments):
        if not counts[old]:
            continue
        for new, other in enumerate(problem.assignments):
            if new != old and (other.cell, other.option) == (assignment.cell, assignment.option):
                for moved in sorted({1, max(1, counts[old] // 4), counts[old]}):
                    changed = list(counts)
                    changed[old] -= moved
                    changed[new] += moved
                    yield tuple(changed)
