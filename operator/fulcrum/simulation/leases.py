"""How long a prefill worker keeps KV that no worker pulls."""

from __future__ import annotations

from collections import deque

from fulcrum.simulation.job import Job
from fulcrum.simulation.timeline import Timeline


class Leases:
    """All leases are of one length, so they end in the order in which they began: one event for the first is enough."""

    __slots__ = ("_queue", "_seconds", "_timeline", "event")

    def __init__(self, timeline: Timeline, seconds: float) -> None:
        self._timeline, self._seconds = timeline, seconds
        self._queue: deque[Job] = deque()
        self.event = -1

    def begin(self, job: Job, now: float) -> None:
        """The KV of a job is held from now on."""
        job.lease_until = now + self._seconds
        self._queue.append(job)
        if len(self._queue) == 1:
            self._timeline.plan(job.lease_until, self)

    def fire(self, now: float) -> None:
        """Free what was not pulled in time; its decode worker computes it instead."""
        queue = self._queue
        while queue and (queue[0].lease_until <= now or queue[0].held_by is None):
            job = queue.popleft()
            if job.held_by is None or job.loading or job.lease_until > now:
                continue
            job.held_by.release(job, now)
            if job.decode is not None and job in job.decode.waiting:
                job.decode.kv_lost(job)
        if queue:
            self._timeline.plan(queue[0].lease_until, self)
