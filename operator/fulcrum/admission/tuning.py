"""What is tuned in admission, each entry with its unit, why it has this value, and what it buys (`ablation.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTuning:
    """Entries of the room. A neutral value for each is in `simulation.ablations`."""

    first_margin: float = 1.1
    """Actual over predicted latency before any request near its limit has told."""
    most_margin: float = 3.0
    """Bound of a margin, and of the slow-down by one busy neighbour: a wider one turns away all but idle paths."""
    margin_rate: float = 0.05
    """Largest step of a margin for one request, in the logarithm."""
    near: float = 0.7
    """Share of the limit, 0 to 1, above which a request is near it and tells how good it is; `Retry-After` is below."""
    steps_level: float = 0.996
    """Level of the TPOT margin: a batch with too long steps is late for all that are in it, not for one request."""
    overflow: float = 0.05
    """Share of a KV cache by which answers may be expected to outgrow it: what does not fit is computed twice."""
    idle_promises: float = 3.0
    """Promised TTFTs within which a request is served late on idle workers: turning it away helps no other request."""
    demand_seconds: float = 20.0
    """Memory of what each class asks for: long enough for a rate of a few requests a second."""
    demand_sigmas: float = 2.0
    """Standard deviations of a class's Poisson demand that are kept for it above the mean."""
    neighbour_level: float = 0.9
    """Quantile of the slow-down beside busy neighbours that is believed: the single worst sample does not count."""
    neighbour_seconds: float = 60.0
    """Age at which a slow-down by busy neighbours is forgotten, so that a cluster that turned all away tries again."""
    least_slowdown: float = 0.25
    """Slow-down for each busy neighbour below which workers have hardware of their own: ordinary errors are smaller."""


TUNING: Final = AdmissionTuning()
