"""The last step of a search: placements are judged by goodput, both promises together and queues included.

The flow rates each worker alone, so its best ends are compared, and the best one is changed as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.placement.cells import Counts, Problem
from fulcrum.placement.moves import moves
from fulcrum.placement.objective import Objective
from fulcrum.placement.performance import Performance, Stations, goodput
from fulcrum.placement.refine import cell_flow

MOST_CHANGES: Final = 24
"""Changes that are kept at most."""
MOST_TRIED: Final = 600
"""Placements that are asked whether they are better, at most: a tenth to half of a millisecond each."""
_PAIRED: Final = 400
"""Bounds the moves that are combined to pairs."""
_GAIN: Final = 0.005
"""Share of the goodput below which a change is not worth the search that follows it."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """Placements by goodput; remembers all that it has judged."""

    performance: Performance
    problem: Problem
    ceilings: NDArray[np.float64]
    """A row for each assignment: what one worker adds at most to prefill, to decode and to mixed, in requests/s, and
    its price per hour."""
    objective: Objective
    carried: dict[Counts, float] = field(default_factory=dict)
    """Requests/s of the workers of all placements that were judged, links aside."""

    def best(self, ends: Iterable[Counts]) -> Counts | None:
        """Return the best of the ends after all changes that make it better; None: none is enough."""
        best: Counts | None = None
        rate = 0.0
        for end in dict.fromkeys(ends):
            if (found := self._better(end, best, rate)) > 0.0:
                best, rate = end, found
        for _ in range(MOST_CHANGES if best is not None else 0):
            assert best is not None
            for changed in self._changes(best, rate):
                if len(self.carried) >= MOST_TRIED:
                    return best
                if (found := self._better(changed, best, rate)) > 0.0:
                    best, rate = changed, found
                    break
            else:
                break
        return best

    def near(self, best: Counts) -> list[Counts]:
        """Return what has been judged, and all that is one move from the best, in the order of what they are worth."""
        for changed in self._allowed(np.array(best) + moves(self.problem, best)):
            if self.problem.price(changed) <= self.objective.most_price * (1 + 1e-9):
                self.carried[changed] = carried_by(self.performance, stations_of(self.problem, changed))
        score, scale = self.objective.score, self.problem.inventory.price_per_hour or 1.0
        worth = {
            each: score(rate, self.problem.price(each), scale) for each, rate in self.carried.items() if rate > 0.0
        }
        return sorted(worth, key=lambda each: -worth[each])

    def _better(self, counts: Counts, best: Counts | None, rate: float) -> float:
        """Return the goodput of a placement that is better than the best so far, else 0."""
        price, least_rate = self.problem.price(counts), self.objective.least_rate
        if counts in self.carried or price > self.objective.most_price * (1 + 1e-9):
            return 0.0
        if least_rate is None:
            at_least = rate * (1 + _GAIN)
        elif best is not None and price >= self.problem.price(best) * (1 - 1e-9):
            return 0.0
        else:
            at_least = least_rate
        self.carried[counts] = found = carried_by(self.performance, stations_of(self.problem, counts))
        # Links only lower it, and what flows over them takes longer to find.
        found = through_links(self.problem, counts, found) if found >= at_least else 0.0
        return found if found >= at_least else 0.0

    def _changes(self, counts: Counts, carried: float) -> Iterator[Counts]:
        """Yield single moves and pairs of moves that may be better, those first that may be so by most."""
        now, single = np.array(counts), moves(self.problem, counts)
        if not len(single):
            return
        here, each = now @ self.ceilings, single @ self.ceilings
        merits = self._merits(here + each, counts, carried)
        order = np.argsort(-merits, kind="stable")
        yield from self._allowed(now + single[order[np.isfinite(merits[order])]])
        chosen = np.argsort(-self._merits(here + each, None, 0.0), kind="stable")[:_PAIRED]
        one, other = (chosen[numbers] for numbers in np.triu_indices(len(chosen), 1))
        merits = self._merits(here + each[one] + each[other], counts, carried)
        pairs = np.argsort(-merits, kind="stable")[:MOST_TRIED]
        pairs = pairs[np.isfinite(merits[pairs])]
        yield from self._allowed(now + single[one[pairs]] + single[other[pairs]])

    def _allowed(self, rows: NDArray[np.int64]) -> Iterator[Counts]:
        for row in rows:
            changed = tuple(int(count) for count in row)
            if min(changed) >= 0 and changed not in self.carried and self.problem.fits(changed):
                yield changed

    def _merits(self, features: NDArray[np.float64], best: Counts | None, carried: float) -> NDArray[np.float64]:
        """Return how good placements may be at most; minus infinity for those that cannot be better than the best."""
        rates = features[:, :2].min(axis=1) + features[:, 2]
        prices, scale = features[:, -1], self.problem.inventory.price_per_hour or 1.0
        least_rate = self.objective.least_rate
        if least_rate is None:
            good = (prices <= self.objective.most_price * (1 + 1e-9)) & (rates > carried * (1 + _GAIN))
            merits: NDArray[np.float64] = rates * (1.0 - 1e-6 * prices / scale)
        else:
            good = rates >= least_rate
            if best is not None:
                good &= prices < self.problem.price(best) * (1 - 1e-9)
            merits = np.minimum(rates / least_rate, 1.0) * 10.0 - prices / scale
        return np.where(good, merits, -inf) if best is not None else merits


def stations_of(problem: Problem, counts: Counts) -> dict[Role, Stations]:
    """Return the pools of each role."""
    found: dict[Role, dict[WorkerSpeed, int]] = {role: {} for role in Role}
    for count, assignment in zip(counts, problem.assignments, strict=True):
        if count:
            of_role = found[assignment.role]
            of_role[assignment.option.speed] = of_role.get(assignment.option.speed, 0) + count
    return {role: tuple(pools.items()) for role, pools in found.items()}


def carried_by(performance: Performance, of: Mapping[Role, Stations]) -> float:
    """Return requests/s within the promise of the pools of each role, queues included and links aside."""
    return goodput(performance, prefill=of[Role.PREFILL], decode=of[Role.DECODE], mixed=of[Role.MIXED])


def through_links(problem: Problem, counts: Counts, carried: float) -> float:
    """Return how much of what the workers carry together links let through."""
    if carried <= 0.0 or not any(
        a.role is Role.DECODE for a, count in zip(problem.assignments, counts, strict=True) if count
    ):
        return carried
    flow = cell_flow(problem, counts)
    if flow.cut is not None and flow.cut.link_names:
        return min(carried, flow.rate)
    # Less than all workers together carry: no link joins some of them.
    sides = [summed_rate(problem, counts, role) for role in (Role.PREFILL, Role.DECODE)]
    return carried * min(1.0, flow.rate / (min(sides) + summed_rate(problem, counts, Role.MIXED)))


def summed_rate(problem: Problem, counts: Counts, role: Role) -> float:
    """Return what the workers of a role carry together, each by the rates of the problem."""
    pairs = zip(counts, problem.assignments, strict=True)
    return sum(count * assignment.rate for count, assignment in pairs if assignment.role is role)
