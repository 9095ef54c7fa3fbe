"""What no placement can exceed: the linear program without the condition that workers are whole."""

from __future__ import annotations

from math import inf

from scipy.optimize import milp

from fulcrum.placement.cells import Problem
from fulcrum.placement.program import program


def upper_bound(problem: Problem, *, most_price: float = inf) -> float:
    """Return requests/s of the flow model that no placement exceeds."""
    if not problem.choices:
        return 0.0
    model = program(problem, most_price=most_price)
    found = milp(model.cost, constraints=model.constraints, bounds=model.bounds)
    return -float(found.fun) if found.x is not None else 0.0


def least_price(problem: Problem, rate: float) -> float:
    """Return a price per hour below which no placement carries `rate`; infinite where none carries it."""
    if not problem.choices:
        return inf
    model = program(problem, least_rate=rate)
    found = milp(model.cost, constraints=model.constraints, bounds=model.bounds)
    return float(found.fun) if found.x is not None else inf
