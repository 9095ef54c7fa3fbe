"""Where the search starts: in each domain the GPUs that prefill relatively best do so, until both roles carry alike."""

from __future__ import annotations

from math import inf

from fulcrum.api.names import Role
from fulcrum.placement.cells import Assignment, Counts, Problem


def split_start(problem: Problem, domains: list[list[int]]) -> Counts:
    """Return prefill and decode workers; `domains` are the numbers of the cells that are joined well.

    Each domain serves its own prompts, so that KV stays in it (the split of a super-node in HexGen-2, section 3.3).
    """
    counts = [0] * len(problem.assignments)
    for cells in domains:
        _split_domain(problem, cells, counts)
    return tuple(counts)


def uniform_start(problem: Problem, role: Role) -> Counts:
    """Return workers of one role everywhere, in the form that carries most per GPU."""
    counts = [0] * len(problem.assignments)
    for cell in range(len(problem.cells)):
        _fill(problem, counts, _best(problem, cell, role), problem.cells[cell].gpus)
    return tuple(counts)


def _split_domain(problem: Problem, cells: list[int], counts: list[int]) -> None:
    best = {cell: (_best(problem, cell, Role.PREFILL), _best(problem, cell, Role.DECODE)) for cell in cells}

    def advantage(cell: int) -> float:
        prefill, decode = best[cell]
        if prefill is None:
            return -inf
        return _per_gpu(problem, prefill) / _per_gpu(problem, decode) if decode is not None else inf

    order = sorted(cells, key=lambda cell: (-advantage(cell), cell))
    decoded = sum(_per_gpu(problem, best[cell][1]) * problem.cells[cell].gpus for cell in cells)
    prefilled = 0.0
    for cell in order:
        prefill, decode = best[cell]
        gpus = problem.cells[cell].gpus
        per_prefill, per_decode = _per_gpu(problem, prefill), _per_gpu(problem, decode)
        short = max(decoded - prefilled, 0.0)
        wanted = min(float(gpus), short / (per_prefill + per_decode)) if prefill is not None else 0.0
        given = _fill(problem, counts, prefill, round(wanted))
        _fill(problem, counts, decode, gpus - given)
        prefilled += given * per_prefill
        decoded -= given * per_decode


def _best(problem: Problem, cell: int, role: Role) -> int | None:
    """Return the number of the assignment of a role that carries most per GPU of a cell."""
    mine = [
        n for n, assignment in enumerate(problem.assignments) if assignment.cell == cell and assignment.role is role
    ]
    return max(mine, key=lambda n: (_per_gpu(problem, n), -n), default=None)


def _per_gpu(problem: Problem, number: int | None) -> float:
    if number is None:
        return 0.0
    assignment: Assignment = problem.assignments[number]
    return assignment.rate / assignment.option.gpus


def _fill(problem: Problem, counts: list[int], number: int | None, gpus: int) -> int:
    """Add as many workers as fit into `gpus` and into the nodes; returns the GPUs that they take."""
    if number is None:
        return 0
    size = problem.assignments[number].option.gpus
    for workers in range(gpus // size, 0, -1):
        counts[number] += workers
        if problem.fits(tuple(counts)):
            return workers * size
        counts[number] -= workers
    return 0
