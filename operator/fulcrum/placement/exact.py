"""The best placement of the flow model, as a mixed-integer program that HiGHS solves: the reference of the search."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.optimize import milp

from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.program import program


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What HiGHS found."""

    counts: Counts
    objective: float
    """Requests/s, or the price per hour where a rate was asked for."""
    proven: bool
    """Nothing better exists; False: time ran out."""


def exact(
    problem: Problem, *, least_rate: float | None = None, most_price: float = inf, limit_seconds: float = 30.0
) -> Exact | None:
    """Return the best counts, or None where there are none (or none was found in `limit_seconds`)."""
    if not problem.assignments:
        return None
    model = program(problem, least_rate=least_rate, most_price=most_price)
    found = milp(
        model.cost,
        constraints=model.constraints,
        bounds=model.bounds,
        integrality=model.whole,
        options={"time_limit": limit_seconds, "mip_rel_gap": 1e-6},
    )
    if found.x is None:
        return None
    counts = tuple(int(count) for count in np.round(found.x[: len(problem.assignments)]))
    return Exact(counts=counts, objective=abs(float(found.fun)), proven=bool(found.status == 0))
