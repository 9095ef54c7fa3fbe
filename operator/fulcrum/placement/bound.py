"""What no placement can exceed: the linear program without the condition that workers are whole."""

from __future__ import annotations

from math import inf

from scipy.optimize import milp

from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.objective import Objective
from fulcrum.placement.program import program

_ROUNDING = 1e-6
"""A count this far below a whole number is that number."""


def relaxed(problem: Problem, objective: Objective) -> tuple[float, Counts]:
    """Return the optimum with parts of workers, and its counts rounded down.

    The optimum bounds every placement: requests/s that none exceeds (0 where there is none), or with a least rate the
    price per hour below which none carries it (infinite where none does). The counts fit: a search starts there.
    """
    nothing = (0,) * len(problem.assignments)
    if not problem.assignments:
        return (0.0 if objective.least_rate is None else inf), nothing
    model = program(problem, least_rate=objective.least_rate, most_price=objective.most_price)
    found = milp(model.cost, constraints=model.constraints, bounds=model.bounds)
    if found.x is None:
        return (0.0 if objective.least_rate is None else inf), nothing
    return abs(float(found.fun)), tuple(int(count + _ROUNDING) for count in found.x[: len(problem.assignments)])
