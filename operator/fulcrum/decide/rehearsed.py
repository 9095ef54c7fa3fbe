"""What a plan wants to be rehearsed, and what a rehearsal came to; the caller plays it, outside of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from fulcrum.api.gateway_types import RecordPolicy
from fulcrum.api.types import BalanceMode, InferenceClusterSpec, RehearsePolicy
from fulcrum.performance.layout import ROLES, Layout


def rehearses(spec: InferenceClusterSpec) -> bool:
    """Report whether roles change by rehearsals."""
    wanted = spec.balance.rehearse is not RehearsePolicy.OFF and spec.gateway.record is RecordPolicy.ON
    return wanted and spec.balance.mode in (BalanceMode.AUTO, BalanceMode.OBSERVE)


def few_miss(share: float, attainment: float) -> bool:
    """Report whether so small a share misses a promise to `attainment` of all that there is nothing to look for."""
    return share < (1 - attainment) / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A question: would another layout of these workers serve more?"""

    key: str
    """Of the state that it is asked for; the answer for another one is not acted on."""
    standing: Layout
    flexible: frozenset[str]
    """Pools whose workers change their roles."""
    mixes: bool
    """Workers of all of them may also do both."""
    stands_since: datetime | None
    """When the last worker got its role, or became ready; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedLayout:
    """A layout that was played, and what it came to."""

    layout: Layout
    inside: float
    """Share of the requests inside the promise, with how far a play of it was off (`Rehearsed.off`)."""


class Checked(NamedTuple):
    """Shares of the same requests inside the promise."""

    foretold: float
    """By a rehearsal, before they came."""
    served: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The answer to a question."""

    key: str
    """That of the question."""
    time: datetime
    """When it was asked."""
    chosen: Layout
    """What stands, where nothing serves more beyond chance."""
    compared: tuple[PlayedLayout, ...]
    """What stands first, the best last."""
    requests: int
    """That were counted, of the same in each play."""
    future_seconds: float
    gain: float
    """Requests by which the best one is ahead of what stands."""
    error: float
    """Standard error of the gain."""
    off: float
    """By how much what stood served another share of the last requests than a play of them says; 0: no more than by
    chance."""
    checked: Checked | None = None
    """What came of the last forecast that could be held against it."""

    def leads_through(self, layout: Layout) -> bool:
        """Report whether a layout is on the way from what stood to what was chosen, with both of these."""
        stood = self.compared[0].layout
        pools = stood.pools | self.chosen.pools | layout.pools
        return layout.total == stood.total and all(
            min(counts[0], counts[2]) <= counts[1] <= max(counts[0], counts[2])
            for pool in pools
            for role in ROLES
            for counts in [[each.in_pool(pool).get(role, 0) for each in (stood, layout, self.chosen)]]
        )
