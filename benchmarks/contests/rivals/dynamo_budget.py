"""The GPU budget of NVIDIA Dynamo's planner (1.6.1, `planner/core/budget.py`), in workers of one pool."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

Counts = tuple[int, ...]
"""Workers per role: (prefill, decode), or (mixed,)."""
_TOLERANCE: Final = 1
"""Workers by which the total may stay below `min_gpu_budget`: the planner allows the GPUs of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of the total. Equal bounds pin it: the planner then only moves workers from one role to the other."""

    least: int
    """`min_gpu_budget` in workers."""
    most: int
    """`max_gpu_budget` in workers; never exceeded."""

    def under_ceiling(self, current: Counts, proposed: Counts) -> Counts:
        """Return what is nearest to `proposed` on the way from `current`, with at most `most` workers."""
        return _nearest(current, proposed, 0, self.most)

    def guarded(self, current: Counts, proposed: Counts) -> Counts:
        """Return the counts that the budget lets through; no role moves against the direction of its proposal.

        At the floor the planner takes no worker away, and at the ceiling it adds none, unless the other role moves the
        opposite way at the same time. Totals outside the bounds are scaled back into them.
        """
        low, before = self.least - _TOLERANCE, sum(current)
        if not low <= before <= self.most:
            return self._scaled(current)
        up = any(new > old for old, new in zip(current, proposed, strict=True))
        down = any(new < old for old, new in zip(current, proposed, strict=True))
        if up and down and not self.least < before < self.most:
            return _nearest(current, proposed, low, self.most)
        if (down and before <= self.least) or (up and before >= self.most):
            return current
        scaled = self._scaled(proposed)
        on_the_way = all(
            min(pair) <= count <= max(pair) for *pair, count in zip(current, proposed, scaled, strict=True)
        )
        return scaled if on_the_way and low <= sum(scaled) <= self.most else current

    def _scaled(self, counts: Counts) -> Counts:
        """Return the counts scaled into the bounds, in proportion; at least one worker of each role."""
        total = sum(counts)
        if self.least - _TOLERANCE <= total <= self.most:
            return counts
        if len(counts) == 1:
            return (min(max(total, self.least), self.most),)
        prefill, decode = counts
        if total > self.most:
            prefill = max(1, min(self.most - 1, prefill * self.most // total))
            return prefill, max(1, self.most - prefill)
        prefill = -(-prefill * self.least // total)
        return prefill, max(decode, self.least - prefill)


def _nearest(current: Counts, proposed: Counts, low: int, high: int) -> Counts:
    """Return the counts between `current` and `proposed` that are nearest to `proposed` and sum up to `low` to `high`.

    Where one role gives and the other takes, both move or none does.
    """
    asked = [new - old for new, old in zip(proposed, current, strict=True)]
    opposing = min(asked) < 0 < max(asked)

    def distance(counts: Counts) -> tuple[int, int, int, Counts]:
        moved = [count - old for count, old in zip(counts, current, strict=True)]
        skew = abs(abs(moved[0] * asked[-1]) - abs(moved[-1] * asked[0]))
        progress = sum(map(abs, moved))
        return sum(map(abs, asked)) - progress, skew, -progress, counts

    ranges = (range(max(1, min(pair)), max(pair) + 1) for pair in zip(current, proposed, strict=True))
    found = [
        counts
        for counts in product(*ranges)
        if low <= sum(counts) <= high and not (opposing and (counts[0] == current[0]) != (counts[-1] == current[-1]))
    ]
    return min(found, key=distance, default=current)
