"""First tokens that no reader sees: that of an answer which comes as one is taken to come when predicted. Compiled.

A timer for each request would cost a twentieth of it, so time passes here only when it makes a difference: before
anything else happens to the cluster's view, and now and then.
"""

from __future__ import annotations

from heapq import heappop, heappush

from fulcrum.routing import ClusterView, Flight


class FirstTokens:
    """Flights by when their first token is due."""

    __slots__ = ("_cluster", "_due", "_turn")

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._due: list[tuple[float, int, Flight]] = []
        self._turn = 0

    def expect(self, flight: Flight, at_seconds: float) -> None:
        """The first token of `flight` is due then; one that is over before is forgotten then."""
        self._turn += 1
        heappush(self._due, (at_seconds, self._turn, flight))

    def pass_time(self, now_seconds: float) -> None:
        """It is so late now."""
        due = self._due
        while due and due[0][0] <= now_seconds:
            at_seconds, _, flight = heappop(due)
            self._cluster.prefill_done(flight, at_seconds, seen=False)
