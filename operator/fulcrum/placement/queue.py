"""The servers of a role as one queue, and the rate that passes through it in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

from fulcrum.performance.staffing import late_share

_HALVINGS: Final = 14
"""Of the search for a rate: its width is then below 0.01 % of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """All servers of a role, in front of which requests wait together."""

    servers: float
    each: float
    """Requests/s of one server."""
    patience_seconds: tuple[float, ...]
    """A request may wait that long; each equally likely."""
    variability: float
    """Of arrivals and service against exponential ones."""
    share: float = 1.0
    """Of the requests, those short enough for the servers to be in time with them."""

    @property
    def rate(self) -> float:
        """Return the requests/s of all servers."""
        return self.servers * self.each

    def busy(self, rate: float) -> float:
        """Return the share of the servers that is busy when a request comes: those that come in bursts meet more."""
        if self.rate <= 0.0:
            return 1.0
        work = rate / self.each
        return min((work + sqrt(work * self.variability)) / self.servers, 1.0)

    def kept(self, rate: float, *, turns_away: bool) -> float:
        """Return the share of `rate` requests/s that is in time."""
        if self.rate <= 0.0:
            return 0.0
        work = rate * (self.share if turns_away else 1.0) / self.each
        patience = [seconds * self.each for seconds in self.patience_seconds]
        late = late_share(work, self.servers, patience=patience, variability=self.variability, turns_away=turns_away)
        return self.share * (1.0 - late)


NOTHING: Final = Queue(servers=0.0, each=0.0, patience_seconds=(), variability=1.0, share=0.0)


def highest_rate(kept: Callable[[float], float], target: float, *, most: float) -> float:
    """Return the highest rate up to `most` (requests/s) at which `kept`, which falls, is at least `target`."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) >= target else (low, middle)
    return low


def linked(queue: Queue, most_rate: float | None) -> Queue:
    """Return the queue of a worker whose link has time for so many requests/s."""
    return queue if most_rate is None or queue.rate <= most_rate else replace(queue, each=most_rate / queue.servers)


def together(one: Queue, other: Queue) -> Queue:
    """Return the servers of two pools as one queue."""
    if one.servers == 0.0:
        return other
    servers, rate = one.servers + other.servers, one.rate + other.rate
    return Queue(
        servers=servers,
        each=rate / servers,
        patience_seconds=tuple(
            (one.rate * each + other.rate * more) / rate
            for each, more in zip(one.patience_seconds, other.patience_seconds, strict=True)
        ),
        variability=(one.rate * one.variability + other.rate * other.variability) / rate,
        share=(one.rate * one.share + other.rate * other.share) / rate,
    )
