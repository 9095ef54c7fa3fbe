"""Requests that wait at the gateway for their turn, because the prefill workers are kept for other classes.

What a higher class asks for is kept free for it (`shares`): a lower one goes where nothing is queued, and else hardly
ever. Were it turned away each time, workers would have nothing to do between two requests of the higher one. So it
waits, where it is predicted to have its turn in time, and goes when a worker has nothing before it. It is in no
engine's queue meanwhile, so that whoever comes of a higher class waits for one step of it at most.
"""

from __future__ import annotations

from typing import Final

from fulcrum.admission.postpone import Postponed
from fulcrum.routing import ClusterView, Incoming, Route

_MOST: Final = 64
"""So many wait at once, at most: they are looked at every few milliseconds."""
_BUSIEST: Final = 0.9
"""Share of the prefill workers' time that higher classes are believed to take, at most."""
_IN_VAIN: Final = 0.1
"""Share of those that may wait in vain, because higher classes asked for more than before."""
_LEARN: Final = 0.05
_SAFETY: Final = 1.5
_LEAST_SAFETY: Final = 1.0
_MOST_SAFETY: Final = 5.0


class InLine(Postponed):
    """One that waits for its turn."""

    __slots__ = ("own_seconds", "rank")

    def __init__(self, incoming: Incoming, found: Route, now_seconds: float, rank: int) -> None:
        super().__init__(incoming, found, now_seconds, spare=False)
        self.own_seconds = found.ttft_seconds - found.wait_seconds
        """TTFT on a worker that has nothing before it."""
        self.rank = rank
        """Of its class: 0 is the highest."""


class Turns:
    """Who waits, by rank and arrival, and how far the prediction of their turns can be believed."""

    __slots__ = ("_lines", "_safety", "gateways", "waiting")

    def __init__(self, ranks: int, gateways: int = 1) -> None:
        """`gateways`: replicas that share the traffic evenly, and so what is left for these classes."""
        self._lines: list[dict[InLine, None]] = [{} for _ in range(ranks)]
        self.gateways = gateways
        self._safety = _SAFETY
        self.waiting = 0

    def anybody(self, rank: int) -> bool:
        """Whether somebody waits whose turn comes before one of `rank` that arrives now."""
        return self.waiting > 0 and any(self._lines[: rank + 1])

    def wait_seconds(self, found: Route, view: ClusterView, rank: int) -> float:
        """Time until all that wait before one of `rank` are served, if nobody else comes."""
        seconds = 0.0
        for line in self._lines[: rank + 1]:
            for one in line:
                seconds += one.work_seconds
        return found.wait_seconds + seconds * self.gateways / view.prefill_workers

    def take(
        self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float, *, above: float, until: float
    ) -> InLine | None:
        """Let a request wait that is predicted to have its turn in time; None: it is not.

        `above`: part of the prefill workers' time that higher classes ask for. `until`: TTFT that it may have.
        """
        rank = view.ranks[incoming.qos]
        one = InLine(incoming, found, now_seconds, rank)
        wait_seconds = self.wait_seconds(found, view, rank) / (1 - min(above, _BUSIEST))
        if self.waiting >= _MOST or self._safety * wait_seconds > until - one.own_seconds:
            return None
        self._lines[rank][one] = None
        self.waiting += 1
        return one

    def has_come(self, one: InLine, view: ClusterView) -> bool:
        """Whether so few wait before it that a worker may be free for it, too."""
        before = 0
        for line in self._lines[: one.rank + 1]:
            for other in line:
                if other is one:
                    return True
                before += 1
                if before >= view.prefill_workers:
                    return False
        return True

    def leave(self, one: Postponed, *, in_vain: bool | None = None) -> None:
        """One waits no longer: it goes, has waited in vain, or (None) neither."""
        if not isinstance(one, InLine) or one not in self._lines[one.rank]:
            return
        del self._lines[one.rank][one]
        self.waiting -= 1
        if in_vain is not None:
            self._safety *= 1 + _LEARN * ((1 - _IN_VAIN) if in_vain else -_IN_VAIN)
            self._safety = min(max(self._safety, _LEAST_SAFETY), _MOST_SAFETY)
