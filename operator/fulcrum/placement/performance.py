"""How much load workers carry within the promise, by estimates that the caller hands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from fulcrum.capacity.speed import WorkerSpeed

Stations = Sequence[tuple[WorkerSpeed, int]]
"""Pools of one role: (speed of one worker, number of workers)."""

RATE_TOLERANCE: Final = 0.004
"""Relative width at which the search for a rate ends: well below the error of the estimates."""
_DOUBLINGS: Final = 40
LEAST_RATE: Final = 1e-3
"""Requests/s: below this a worker counts as unable to keep the promise."""


class Performance(Protocol):
    """Estimates for one workload and one promise. Shares are 0 to 1, and fall as the rate rises."""

    @property
    def target(self) -> float:
        """Share of requests that must be inside the promise."""

    def prefill(self, rate: float, stations: Stations, *, beside_idle: bool = False) -> float:
        """Share of prompts whose first token is in time, with decode workers that just keep their promise (or idle)."""

    def decode(self, rate: float, stations: Stations, *, beside_idle: bool = False) -> float:
        """Share of requests whose time per output token is inside the promise, with prefill workers that are busy."""

    def split(self, rate: float, prefill: Stations, decode: Stations) -> float:
        """Share of requests inside both promises on prefill and decode workers together."""

    def mixed(self, rate: float, stations: Stations) -> float:
        """Share of requests inside both promises on workers that do both."""

    def floor(self, speeds: Sequence[WorkerSpeed]) -> tuple[float, float]:
        """Shortest TTFT and TPOT (seconds) of a mean request alone on a worker of any of `speeds`."""


def highest_rate(share_at: Callable[[float], float], target: float, *, tolerance: float = RATE_TOLERANCE) -> float:
    """Return the highest rate (requests/s) at which `share_at` is at least `target`; 0 where there is none."""
    low, high = 0.0, LEAST_RATE
    for _ in range(_DOUBLINGS):
        if share_at(high) < target:
            break
        low, high = high, high * 2
    if low == 0.0:
        return 0.0
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if share_at(middle) >= target:
            low = middle
        else:
            high = middle
    return low


def goodput(
    performance: Performance,
    *,
    prefill: Stations = (),
    decode: Stations = (),
    mixed: Stations = (),
    at_least: float = 0.0,
) -> float:
    """Return the highest rate that a layout carries within the promise, queues included; 0 if not above `at_least`.

    Where there are mixed workers beside the others, each part gets the share of the requests that it carries alone.
    """
    parts: list[Callable[[float], float]] = []
    if prefill and decode:
        parts.append(lambda rate: performance.split(rate, prefill, decode))
    if mixed:
        parts.append(lambda rate: performance.mixed(rate, mixed))
    if len(parts) == 1 and at_least > 0.0 and parts[0](at_least) < performance.target:
        return 0.0  # a twentieth of the time that the rate itself takes
    found = sum(highest_rate(part, performance.target) for part in parts)
    return found if found >= at_least * (1.0 - RATE_TOLERANCE) else 0.0
