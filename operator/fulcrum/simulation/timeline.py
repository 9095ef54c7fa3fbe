"""The event queue."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Protocol


class Target(Protocol):
    """Something with at most one event to come; a later one replaces it."""

    event: int
    """Number of the event that counts; others in the queue are out of date."""

    def fire(self, now: float) -> None: ...


class Alarm:
    """Calls a function."""

    __slots__ = ("event", "fire", "set")

    def __init__(self, fire: Callable[[float], None]) -> None:
        self.event = -1
        self.fire = fire
        self.set = False
        """For its owner: whether it is to fire."""


class Timeline:
    """Events by time, equal times in the order in which they were planned."""

    __slots__ = ("_planned", "queue")

    def __init__(self) -> None:
        self.queue: list[tuple[float, int, Target]] = []
        self._planned = 0

    def plan(self, seconds: float, target: Target) -> None:
        """Let `target` fire at `seconds`, and no longer when it was to before."""
        self._planned += 1
        target.event = self._planned
        heappush(self.queue, (seconds, self._planned, target))
