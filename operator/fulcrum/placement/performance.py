"""How much load workers carry within the promise, by estimates that the caller hands in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed

Stations = Sequence[tuple[WorkerSpeed, int]]
"""Pools of one role: (speed of one worker, number of workers)."""


class Performance(Protocol):
    """Estimates for one workload and one promise. Rates are requests/s that arrive, most of them inside the promise."""

    @property
    def target(self) -> float:
        """Share of requests that must be inside the promise."""

    def alone(self, stations: Stations, role: Role) -> float:
        """Rate that workers of one role carry, with plenty of the other role."""

    def split(self, prefill: Stations, decode: Stations) -> float:
        """Rate that prefill and decode workers carry together."""

    def most(self, speed: WorkerSpeed, role: Role, count: int) -> float:
        """Rate that no worker exceeds in a role, whatever stands beside it, of at most `count` workers of its kind."""

    def floor(self, speeds: Sequence[WorkerSpeed]) -> tuple[float, float]:
        """Shortest TTFT and TPOT (seconds) that the promised share can have alone on a worker of any of `speeds`."""


def goodput(performance: Performance, *, prefill: Stations = (), decode: Stations = (), mixed: Stations = ()) -> float:
    """Return the rate that a layout carries within the promise, queues included.

    Where there are mixed workers beside the others, each part gets the share of the requests that it carries alone.
    """
    found = performance.split(prefill, decode) if prefill and decode else 0.0
    return found + (performance.alone(mixed, Role.MIXED) if mixed else 0.0)
