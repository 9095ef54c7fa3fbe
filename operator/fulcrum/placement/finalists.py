"""The last placements are played: a simulation, which the caller hands in, says what each of them carries.

Estimates rank placements better than they know their rates, and of placements that are close they cannot tell the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from fulcrum.api.names import Role
from fulcrum.placement.finish import carried_by
from fulcrum.placement.performance import Performance, Stations
from fulcrum.placement.plan import PlacementPlan

TOLERANCE: Final = 0.02
"""Relative width at which the search for a rate ends: the error of a thousand played requests."""
_STEP: Final = 1.15
"""Factor between the first two rates, then its square and so on, until one is kept and one is not: estimates are seldom
further off."""
_MOST_PLAYS: Final = 12
"""Of one placement: enough where the estimates are wrong by a factor of three."""
_LEAST_SHARE: Final = 1e-3
"""Of the expected rate: what does not keep even so little keeps the promise at no rate. At far lower ones a play would
last so long that its clock no longer tells apart when a request came and when it was answered."""

Workers = Mapping[Role, Stations]
"""Pools of each role."""
LeastRate = Callable[[PlacementPlan, PlacementPlan], float]
"""Goodput (requests/s) with which the first plan is as good as the second one, which has been played."""


class Play(Protocol):
    """A simulation of workers. The same question has the same answer."""

    @property
    def most_rate(self) -> float:
        """Requests/s of one play at most: it takes as long as it has requests."""

    def share(self, workers: Workers, rate: float) -> float:
        """Share of `rate` requests/s that the workers keep inside the promise."""


@dataclass(frozen=True, slots=True)
class _Played:
    """A plan, and the part of its workers that is played."""

    plan: PlacementPlan
    play: Play
    target: float
    part: Workers
    expected: float
    """Requests/s that the part carries by the estimates."""
    scale: float
    """What all workers carry by the estimates, for each request/s of the part."""

    @classmethod
    def of(cls, plan: PlacementPlan, play: Play, performance: Performance) -> _Played:
        workers = workers_of(plan)
        whole = carried_by(performance, workers)
        part = workers if whole <= play.most_rate else _part(workers, play.most_rate / whole)
        expected = carried_by(performance, part)
        return cls(plan, play, performance.target, part, expected, whole / expected if expected > 0.0 else 1.0)

    def share(self, rate: float) -> float:
        """Return the share of `rate` requests/s that all workers keep inside the promise."""
        return self.play.share(self.part, rate / self.scale)

    def highest(self, *, kept: float = 0.0) -> float:
        """Return the highest rate that is kept; `kept` is one that is."""
        found = highest_kept(self.share, self.target, expected=self.expected * self.scale, kept=kept)
        return found if self.plan.linked else min(found, self.plan.estimate)


def best_played(
    plans: Sequence[PlacementPlan], play: Play, performance: Performance, *, least_rate: LeastRate
) -> PlacementPlan | None:
    """Return the plan that is best when it is played, with the goodput that it then has; None: none keeps the promise.

    The first plan is played until its goodput is known, the others once each at the rate with which they are surely
    better; the one that keeps most of that rate is played on.
    """
    finalists = [_Played.of(plan, play, performance) for plan in plans]
    best: PlacementPlan | None = None
    while best is None and finalists:
        first = finalists.pop(0)
        if (goodput := first.highest()) > 0.0:
            best = first.plan.played(goodput)
    if best is None:
        return None
    rates = [least_rate(each.plan, best) * (1 + TOLERANCE) for each in finalists]
    shares = [
        each.share(rate) if each.plan.linked or each.plan.estimate >= rate else 0.0
        for each, rate in zip(finalists, rates, strict=True)
    ]
    most = max(range(len(shares)), key=lambda number: shares[number], default=None)
    if most is None or shares[most] < performance.target:
        return best
    return finalists[most].plan.played(finalists[most].highest(kept=rates[most]))


def played_goodput(plan: PlacementPlan, play: Play, performance: Performance) -> float:
    """Return the highest rate (requests/s) that a plan keeps within the promise when it is played.

    Of workers that carry more than one play has requests a part is played: how far the estimates are off for the part
    is taken to hold for all. Links between nodes are not played.
    """
    return _Played.of(plan, play, performance).highest()


def workers_of(plan: PlacementPlan) -> dict[Role, Stations]:
    """Return the pools of a plan by role."""
    return {role: tuple((pool.option.speed, pool.workers) for pool in plan.pools if pool.role is role) for role in Role}


def highest_kept(share: Callable[[float], float], target: float, *, expected: float, kept: float = 0.0) -> float:
    """Return the highest rate at which `share` is at least `target`, searched from the expected one; 0: there is none.

    `kept` is a rate at which it is.
    """
    low, high, step = kept, inf, _STEP
    for _ in range(_MOST_PLAYS):
        if low > 0.0 and high < inf:
            rate = (low + high) / 2
        elif low < expected and high == inf:
            rate = expected
        else:
            rate, step = (low * step if high == inf else high / step), step**2
        if rate < _LEAST_SHARE * expected:
            break
        low, high = (rate, high) if share(rate) >= target else (low, rate)
        if high - low <= TOLERANCE * high < inf:
            break
    return low


def _part(workers: Workers, share: float) -> dict[Role, Stations]:
    return {
        role: tuple((speed, max(1, round(count * share))) for speed, count in stations)
        for role, stations in workers.items()
    }
