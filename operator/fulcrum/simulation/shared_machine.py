"""Workers that share a machine: each is slower while others compute.

All of them are slowed down alike, by a factor that only changes when one of them begins or ends. So there is one clock
for the whole machine that shows the time that a worker would have had alone, and whatever is exact on that clock (a
run of decode steps in closed form, for one) is exact here.
"""

from __future__ import annotations

from fulcrum.simulation.timeline import Target, Timeline


class SharedMachine:
    """The workers of one machine that compute."""

    __slots__ = ("_alone_seconds", "_due", "_pace", "_seconds", "_slowdown", "_timeline")

    def __init__(self, slowdown: float, timeline: Timeline) -> None:
        """`slowdown`: how much longer work takes for each other worker that computes, as a fraction."""
        self._slowdown = slowdown
        self._timeline = timeline
        self._due: dict[Target, float] = {}
        self._pace = 1.0
        self._seconds = self._alone_seconds = 0.0  # what both clocks showed when the pace changed last

    def clock(self, now: float) -> float:
        """What the clock shows on which each worker is as quick as if it were alone."""
        return self._alone_seconds + (now - self._seconds) / self._pace

    def plan(self, due: float, worker: Target, now: float) -> None:
        """Let `worker`, which computes from now on, fire when `clock` shows `due`."""
        joins = worker not in self._due
        self._due[worker] = due
        if joins:
            self._changed(now)
        else:
            self._timeline.plan(self._when(due), worker)

    def leave(self, worker: Target, now: float) -> None:
        """Let a worker that no longer computes be."""
        if worker in self._due:
            del self._due[worker]
            worker.event = -1
            self._changed(now)

    def _changed(self, now: float) -> None:
        self._alone_seconds, self._seconds = self.clock(now), now
        self._pace = 1.0 + self._slowdown * max(0, len(self._due) - 1)
        for worker, due in self._due.items():
            self._timeline.plan(self._when(due), worker)

    def _when(self, due: float) -> float:
        return self._seconds + max(0.0, due - self._alone_seconds) * self._pace
