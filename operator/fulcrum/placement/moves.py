"""Changes of a placement: fewer workers of one form or role in a cell, more of another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fulcrum.placement.cells import Counts, Problem

Ints = NDArray[np.int64]


def moves(problem: Problem, counts: Counts) -> Ints:
    """Return changes of the counts, one per row: fewer of one assignment, more of another in the same cell."""
    found: set[tuple[int, int, int, int]] = set()
    assignments = problem.assignments
    idle = _idle(problem, counts)
    for old, assignment in enumerate(assignments):
        if not counts[old]:
            continue
        for less in _doublings(counts[old]):
            found.add((old, less, -1, 0))
            freed = less * assignment.option.gpus + idle[assignment.cell]
            for new, other in enumerate(assignments):
                if other.cell == assignment.cell and new != old and (more := freed // other.option.gpus):
                    found.add((old, less, new, more))
                    found.add((old, less, new, max(1, less * assignment.option.gpus // other.option.gpus)))
    for new, assignment in enumerate(assignments):
        room = idle[assignment.cell] // assignment.option.gpus
        found.update((-1, 0, new, more) for more in _doublings(room))
    rows = np.zeros((len(found), len(assignments)), dtype=np.int64)
    for row, (old, less, new, more) in enumerate(sorted(found)):
        if old >= 0:
            rows[row, old] -= less
        if new >= 0:
            rows[row, new] += more
    return rows


def _idle(problem: Problem, counts: Counts) -> list[int]:
    """Return the GPUs of each cell that no worker uses."""
    idle = [cell.gpus for cell in problem.cells]
    for count, assignment in zip(counts, problem.assignments, strict=True):
        idle[assignment.cell] -= count * assignment.option.gpus
    return idle


def _doublings(count: int) -> list[int]:
    """Return 1, 2, 4 ... up to `count`, and `count`."""
    return sorted({min(2**power, count) for power in range(count.bit_length() + 1)} - {0})
