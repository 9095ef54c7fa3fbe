"""Least squares with non-negative coefficients, for the six numbers of the capacity model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fulcrum.api.worker import SpeedCoefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSample:
    """Time that the engine took for one prompt."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSample:
    """Time of one decode step of a batch."""

    batch: int
    context_tokens: float
    """Summed over the batch."""
    seconds: float


def fit_speed(prefills: Sequence[PrefillSample], decodes: Sequence[DecodeSample]) -> SpeedCoefficients | None:
    """Fits both formulas of `SpeedCoefficients`; None with fewer than two prompt lengths or without a decode sample."""
    prefills = [sample for sample in prefills if sample.seconds > 0]
    decodes = [sample for sample in decodes if sample.seconds > 0]
    if len({sample.prompt_tokens for sample in prefills}) < 2 or not decodes:
        return None
    prefill = non_negative_least_squares(
        [(1.0, float(sample.prompt_tokens), float(sample.prompt_tokens) ** 2) for sample in prefills],
        [sample.seconds for sample in prefills],
    )
    decode = non_negative_least_squares(
        [(1.0, float(sample.batch), sample.context_tokens) for sample in decodes],
        [sample.seconds for sample in decodes],
    )
    return SpeedCoefficients(
        prefill_a=prefill[0],
        prefill_b=prefill[1],
        prefill_c=prefill[2],
        decode_a=decode[0],
        decode_b=decode[1],
        decode_c=decode[2],
    )


def non_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Coefficients >= 0 that minimise the summed squared *relative* error (targets > 0).

    Relative, because a sample of 10 ms matters as much as one of a second. With three columns the best is found by
    solving for each subset of columns and taking the best that is non-negative, which is exact.
    """
    import numpy as np

    weights = 1.0 / np.asarray(targets, dtype=float)
    matrix = np.asarray(rows, dtype=float) * weights[:, None]
    # Columns differ by many orders of magnitude (1 to 1e8); scaled, the solver sees their directions and not their
    # sizes.
    scales = np.linalg.norm(matrix, axis=0)
    scales[scales == 0] = 1.0
    matrix = matrix / scales
    ones = np.ones(len(targets))
    columns = matrix.shape[1]
    best, best_error = np.zeros(columns), float(len(targets))
    for size in range(1, columns + 1):
        for subset in itertools.combinations(range(columns), size):
            solution, *_ = np.linalg.lstsq(matrix[:, subset], ones, rcond=None)
            error = float(np.sum((matrix[:, subset] @ solution - ones) ** 2))
            if (solution >= 0).all() and error < best_error - 1e-12:
                best, best_error = np.zeros(columns), error
                best[list(subset)] = solution
    return [float(value) for value in best / scales]
