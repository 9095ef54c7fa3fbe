"""Which workers of a pool are slower than the others: alike GPUs do the same work in the same time, or one is not well.

A GPU that is throttled (heat, power), or has lost lanes of PCIe or NVLink, answers correctly and slowly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Final, Self

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.decode_curve import decode_step_seconds
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import typical_seconds

SLOW: Final = 1.3
"""Times as long as its peers' median from which on a worker is slow. Usual rows are off by a tenth, and their mean over
`_MEMORY` rows by 2 %; unlike loads in one pool make up for the rest."""
WELL: Final = 1.15
"""Times as long below which it is no longer: halfway, so that noise around one bound changes nothing."""
_MEMORY: Final = 24
"""Rows over which a pace is the mean: 4 minutes of work, so that a busy moment is none. With 12, noise of usual rows
named a worker between both bounds 3 times in 10 hours; with 24 not once (`tests/capacity/test_pace.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a worker takes for its work, in times of what its pool's speed says."""

    times: float = 1.0
    rows: int = 0

    @property
    def known(self) -> bool:
        """Whether enough rows were seen."""
        return self.rows >= _MEMORY

    def after(self, row: PrefillRow | DecodeRow, of_pool: SpeedCoefficients) -> Self:
        """Return the pace with one more row; rows with impossible numbers are passed over."""
        if not row.usable:
            return self
        if isinstance(row, PrefillRow):
            prompts, tokens, squares = row.features
            expected = of_pool.prefill_a * prompts + of_pool.prefill_b * tokens + of_pool.prefill_c * squares
            took = row.seconds
        else:
            expected = decode_step_seconds(of_pool, row.batch, row.context_tokens)
            took = row.seconds_per_step
        if expected <= 0:
            return self
        rows = self.rows + 1
        times = max(1 / 4, min(4.0, took / expected))  # one row says at most four times as long, or as short
        return type(self)(times=self.times + (times - self.times) / min(rows, _MEMORY), rows=rows)


def measured_times(measured: WorkerSpeed, of_pool: WorkerSpeed) -> float | None:
    """Return the pace that a worker measured at its start: the mean of a typical prompt and a typical decode step.

    None where one of the speeds makes no sense.
    """
    ours, theirs = typical_seconds(measured), typical_seconds(of_pool)
    if min(*ours, *theirs) <= 0:
        return None
    return sqrt(ours[0] / theirs[0] * ours[1] / theirs[1])


def slower_than_peers(times: Mapping[str, float], before: Collection[str]) -> dict[str, float]:
    """Return the slow workers of one pool, and how many times as long as the median of the others they take.

    `times` is the pace of each worker by name, `before` the names that were slow until now: they must get clearly
    better to be well. With more than half of the pool slow nothing is found, because that is the pool's speed then.
    """
    found = {}
    for name, own in times.items():
        others = [pace for other, pace in times.items() if other != name]
        # Of two workers none can say which is the odd one.
        if len(others) >= 2 and (usual := median(others)) > 0:
            factor = own / usual
            if factor >= (WELL if name in before else SLOW):
                found[name] = factor
    return found
