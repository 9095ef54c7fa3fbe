"""Every number that shapes what is read from the traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Default, unit and reason of each."""

    window_seconds: float = 30.0
    """Longest window over which a load is averaged, and length of the stretches of the last minutes in which lengths
    are compared with their mean. Prometheus scrapes as seldom as that, so that a query looks back over two."""
    memory_seconds: float = 300.0
    """How far back the spread of lengths and bursts are measured: one window holds too few requests for them."""
    span_seconds: float = 2.0
    """Length of the spans in which arrivals are counted: about a TTFT promise, and a tick of the control loop."""
    newest_parts: tuple[float, ...] = (0.2, 0.35, 0.5, 0.65, 0.8)
    """Newest parts of the window, as shares of it, in one of which the load may have begun after a pause."""
    sigmas: float = 3.0
    """Standard errors beyond which arrivals come in bursts: 1 in 400 by chance."""
    least_seen: int = 5
    """Requests below which nothing is said of the begin of a load. Bursts take twice as many spans, a window as many at
    least."""
    steady_requests: float = 8.0
    """Weight, in requests, of the last minutes' correction of expected lengths beside that of the window."""


TUNING: Final = Tuning()
