"""A placement as a linear program over the counts of workers and the flow of KV: `exact` and `bound` solve it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import coo_array

from fulcrum.api.names import Role
from fulcrum.placement.cells import Problem
from fulcrum.placement.inventory import requests_per_second

_PER_CELL: Final = 3
"""Flow variables of a cell: inside its nodes, out of their network cards, into them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Minimise `cost @ x` within `constraints` and `bounds`; the first `len(assignments)` variables are whole."""

    cost: Floats
    constraints: LinearConstraint
    bounds: Bounds
    whole: Floats


class _Rows:
    """Constraints `sum(coefficient * variable) <= limit`, row by row."""

    def __init__(self) -> None:
        self._cells: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, terms: list[tuple[int, float]], high: float, low: float = -inf) -> None:
        row = len(self._high)
        self._cells.extend((row, column, value) for column, value in terms)
        self._low.append(low)
        self._high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        rows, columns, values = zip(*self._cells, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._high), variables)).tocsr()
        return LinearConstraint(matrix, self._low, self._high)


def program(problem: Problem, *, least_rate: float | None = None, most_price: float = inf) -> Program:
    """Return the program of most flow; with `least_rate`, of the least price at which that much flows.

    Cells of several nodes are taken as one: what moves inside a cell may stay inside its nodes. That never
    understates the flow, so the optimum is a bound from above, and exact where each node is a cell.
    """
    assignments, cells = problem.assignments, problem.cells
    regions = sorted(
        {cell.kind.region for cell in cells} | {name for link in problem.inventory.links for name in link.between}
    )
    arcs = [(arc, link) for link in problem.inventory.links for arc in (link.between, link.between[::-1])]
    first_flow = len(assignments)
    first_arc = first_flow + _PER_CELL * len(cells)
    size = first_arc + len(arcs)
    rows = _Rows()
    _gpus(problem, rows)
    kv_bytes = problem.kv_bytes_per_request
    upper = np.full(size, inf)

    for index, cell in enumerate(cells):
        local, out, into = (first_flow + _PER_CELL * index + each for each in range(_PER_CELL))
        for role, flow in ((Role.PREFILL, out), (Role.DECODE, into)):
            supply = [(n, -c.rate) for n, c in enumerate(assignments) if c.cell == index and c.role is role]
            rows.add([(local, 1.0), (flow, 1.0), *supply], 0.0)
        nodes, gpu = len(cell.nodes), cell.kind.accelerator
        upper[local] = requests_per_second(nodes * cell.kind.gpus * gpu.local_bytes_per_second, kv_bytes)
        upper[out] = upper[into] = requests_per_second(nodes * cell.nodes[0].network_bytes_per_second, kv_bytes)
    for region in regions:
        rows.add(
            _balance(problem, region, first_flow, [(first_arc + n, *arc) for n, (arc, _) in enumerate(arcs)]), 0.0, 0.0
        )
    for number, (_, link) in enumerate(arcs):
        upper[first_arc + number] = requests_per_second(link.bytes_per_second, kv_bytes)
    flows = [(first_flow + _PER_CELL * index + each, 1.0) for index in range(len(cells)) for each in (0, 2)]
    flows += [
        (number, assignment.rate) for number, assignment in enumerate(assignments) if assignment.role is Role.MIXED
    ]
    prices = [(number, assignment.option.price_per_hour) for number, assignment in enumerate(assignments)]
    if most_price < inf:
        rows.add(prices, most_price)
    cost = np.zeros(size)
    if least_rate is None:
        for column, value in flows:
            cost[column] = -value
    else:
        rows.add(flows, inf, least_rate)
        for column, value in prices:
            cost[column] = value
    whole = np.zeros(size)
    whole[:first_flow] = 1.0
    return Program(cost=cost, constraints=rows.constraint(size), bounds=Bounds(np.zeros(size), upper), whole=whole)


def _balance(
    problem: Problem, region: str, first_flow: int, arcs: list[tuple[int, str, str]]
) -> list[tuple[int, float]]:
    """What leaves the cells of a region and comes over links, less what enters cells and leaves over links."""
    terms: list[tuple[int, float]] = []
    for index, cell in enumerate(problem.cells):
        if cell.kind.region == region:
            terms += [(first_flow + _PER_CELL * index + 1, 1.0), (first_flow + _PER_CELL * index + 2, -1.0)]
    terms += [(number, -1.0 if start == region else 1.0) for number, start, end in arcs if region in (start, end)]
    return terms


def _gpus(problem: Problem, rows: _Rows) -> None:
    """Workers pack into the nodes of their cell (`cells.packs`)."""
    for index, cell in enumerate(problem.cells):
        mine = [
            (number, assignment) for number, assignment in enumerate(problem.assignments) if assignment.cell == index
        ]
        for size in sorted({assignment.option.gpus for _, assignment in mine}):
            terms = [
                (number, assignment.option.gpus / size) for number, assignment in mine if assignment.option.gpus >= size
            ]
            rows.add(terms, float(len(cell.nodes) * (cell.kind.gpus // size)))
