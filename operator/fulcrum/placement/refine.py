"""Local search over the counts of workers, guided by the bottlenecks of the flow (HexGen-2, ICLR 2025, section 3.4).

A move gives the GPUs of some workers of a cell to workers of another form or role; two moves together swap roles
between cells. Each minimum cut that was met bounds what any placement can carry by a linear function of its counts, so
that moves which do not relieve the bottlenecks are passed over without computing their flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.flow import Cut, Flow, Site, most_flow
from fulcrum.placement.moves import moves
from fulcrum.placement.objective import Objective

MOST_STEPS: Final = 400
"""Bounds the improvements; searches of 1,024 GPUs end after fewer than 100."""
TRIED: Final = 48
"""Bounds the flows that are computed for one improvement, best bound first."""
_PAIRED: Final = 600
"""Bounds the moves that are combined to pairs: 360,000 sums take 10 ms."""
_GAIN: Final = 1e-6
"""Relative gain below which a move is rounding."""

Floats = NDArray[np.float64]


def sites_of(problem: Problem, counts: Counts) -> list[Site]:
    """Return the cells as sites of the flow."""
    rates = [dict.fromkeys(Role, 0.0) for _ in problem.cells]
    for count, assignment in zip(counts, problem.assignments, strict=True):
        rates[assignment.cell][assignment.role] += count * assignment.rate
    return [
        Site(
            name=str(index),
            region=cell.kind.region,
            prefill_rate=rates[index][Role.PREFILL],
            decode_rate=rates[index][Role.DECODE],
            mixed_rate=rates[index][Role.MIXED],
            local_bytes_per_second=cell.gpus * cell.kind.accelerator.local_bytes_per_second,
            network_bytes_per_second=len(cell.nodes) * cell.nodes[0].network_bytes_per_second,
        )
        for index, cell in enumerate(problem.cells)
    ]


def cell_flow(problem: Problem, counts: Counts) -> Flow:
    """Return the flow over cells."""
    return most_flow(sites_of(problem, counts), problem.inventory, problem.kv_bytes_per_request, with_routes=False)


@dataclass(slots=True, kw_only=True)
class Refinement:
    """One search from one start; keeps the cuts that it has met."""

    problem: Problem
    objective: Objective
    on_progress: Callable[[str], None] | None = None
    _limits: list[float] = field(default_factory=list)
    _weights: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        everywhere = frozenset(str(index) for index in range(len(self.problem.cells)))
        for prefill, decode in ((everywhere, frozenset[str]()), (frozenset[str](), everywhere)):
            self._note(Cut(prefill=prefill, decode=decode, links=0.0, link_names=()))

    def run(self, start: Counts) -> Counts:
        """Return a placement that no single move and no pair of moves makes better."""
        counts, rate = start, self._flow(start)
        for step in range(MOST_STEPS):
            better = self._improved(counts, rate)
            if better is None:
                return counts
            counts, rate = better
            if self.on_progress is not None:
                self.on_progress(f"refined {step + 1} times: {rate:.2f} requests/s")
        return counts

    def _improved(self, counts: Counts, rate: float) -> tuple[Counts, float] | None:
        """Return the first placement, by what it promises at best, that is indeed better."""
        changes = moves(self.problem, counts)
        if not len(changes):
            return None
        present = self._score(rate, self.problem.price(counts))
        least = present + abs(present) * _GAIN + 1e-12
        weights = np.array(self._weights)
        through = np.array(self._limits) + weights @ np.array(counts, dtype=np.float64)
        gains = changes @ weights.T
        prices = changes @ np.array([assignment.option.price_per_hour for assignment in self.problem.assignments])
        price = self.problem.price(counts)
        single = self._scores((through + gains).min(axis=1), price + prices)
        chosen = np.argsort(-(gains.max(axis=1) - 1e-9 * np.arange(len(changes))), kind="stable")[:_PAIRED]
        bound = np.full((len(chosen), len(chosen)), np.inf)
        for cut in range(len(through)):
            column = gains[chosen, cut]
            np.minimum(bound, through[cut] + column[:, None] + column[None, :], out=bound)
        pairs = np.triu(self._scores(bound, price + prices[chosen][:, None] + prices[chosen][None, :]), 1)
        pairs = np.where(np.triu(np.ones_like(pairs), 1) > 0, pairs, -np.inf).ravel()
        ranked = [(float(single[n]), changes[n]) for n in np.argsort(-single, kind="stable")[:TRIED]]
        for n in np.argsort(-pairs, kind="stable")[:TRIED]:
            one, other = divmod(int(n), len(chosen))
            ranked.append((float(pairs[n]), changes[chosen[one]] + changes[chosen[other]]))
        for promised, move in sorted(ranked, key=lambda each: -each[0]):
            if promised <= least:
                break
            changed = tuple(int(count) for count in np.array(counts) + move)
            if min(changed) < 0 or not self.problem.fits(changed):
                continue
            reached = self._flow(changed)
            if self._score(reached, self.problem.price(changed)) > least:
                return changed, reached
        return None

    def _flow(self, counts: Counts) -> float:
        flow = cell_flow(self.problem, counts)
        if flow.cut is not None:
            self._note(flow.cut)
        return flow.rate

    def _note(self, cut: Cut) -> None:
        """Keep a cut as what it says of any placement: rate <= limit + weights @ counts."""
        weights = np.zeros(len(self.problem.assignments))
        for number, assignment in enumerate(self.problem.assignments):
            crossed = {Role.PREFILL: cut.prefill, Role.DECODE: cut.decode}.get(assignment.role)
            if crossed is None or str(assignment.cell) in crossed:
                weights[number] = assignment.rate
        known = zip(self._weights, self._limits, strict=True)
        if not any(np.array_equal(weights, each) and cut.links >= limit * (1 - 1e-9) for each, limit in known):
            self._weights.append(weights)
            self._limits.append(cut.links)

    @property
    def _scale(self) -> float:
        return self.problem.inventory.price_per_hour or 1.0

    def _score(self, rate: float, price: float) -> float:
        return self.objective.score(rate, price, self._scale)

    def _scores(self, rates: Floats, prices: Floats) -> Floats:
        """`Objective.score` of many."""
        objective = self.objective
        if objective.least_rate is None:
            scores = rates * (1 - 1e-6 * prices / self._scale)
        else:
            scores = np.minimum(rates / objective.least_rate, 1.0) * 1e3 - prices / self._scale
        return np.where(prices > objective.most_price * (1 + 1e-9), -np.inf, scores)
