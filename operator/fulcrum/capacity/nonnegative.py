"""Least squares of a few coefficients that cannot be negative."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def minimise_quadratic(matrix: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 with the least `x^T matrix x - 2 vector^T x`, for a symmetric positive semidefinite matrix.

    Tries every set of coefficients that are not zero, which is exact and, for three of them, quicker than a general
    solver.
    """
    import numpy as np

    size = len(vector)
    best, best_value = np.zeros(size), 0.0
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            part = np.ix_(chosen, chosen)
            solution = np.linalg.lstsq(matrix[part], vector[list(chosen)], rcond=1e-13)[0]
            if (solution < 0).any():
                continue
            value = float(solution @ matrix[part] @ solution - 2 * vector[list(chosen)] @ solution)
            if value < best_value:
                best, best_value = np.zeros(size), value
                best[list(chosen)] = solution
    return best


def fit_relative(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Coefficients >= 0 with the least summed squared *relative* error of `rows @ x` against `seconds` (all > 0)."""
    import numpy as np

    design = np.asarray(rows, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    # Columns differ by up to eight orders of magnitude; scaled, the solver sees directions instead of sizes.
    scale = np.linalg.norm(design, axis=0)
    scale[scale == 0] = 1.0
    design = design / scale
    return tuple(float(each) for each in minimise_quadratic(design.T @ design, design.sum(axis=0)) / scale)
