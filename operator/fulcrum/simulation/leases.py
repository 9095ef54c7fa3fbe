"""How long a prefill worker keeps KV that no worker pulls."""

from __future__ import annotations

from collections import deque

from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.timeline import Timeline


class Leases:
    """All leases are of one length, so they end in the order in which they began: one event for the first is enough."""

    __slots__ = ("_queue", "_seconds", "_timeline", "event")

    def __init__(self, timeline: Timeline, seconds: float) -> None:
        self._timeline, self._seconds = timeline, seconds
        self._queue: deque[SimulatedRequest] = deque()
        self.event = -1

    def begin(self, request: SimulatedRequest, now: float) -> None:
        """The KV of a request is held from now on."""
        request.lease_until = now + self._seconds
        self._queue.append(request)
        if len(self._queue) == 1:
            self._timeline.plan(request.lease_until, self)

    def fire(self, now: float) -> None:
        """Free what was not pulled in time; its decode worker computes it instead."""
        queue = self._queue
        while queue and (queue[0].lease_until <= now or queue[0].held_by is None):
            request = queue.popleft()
            if request.held_by is None or request.loading or request.lease_until > now:
                continue
            request.held_by.release(request, now)
            if request.decode is not None and request in request.decode.waiting:
                request.decode.kv_lost(request)
        if queue:
            self._timeline.plan(queue[0].lease_until, self)
