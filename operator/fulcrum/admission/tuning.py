"""What is tuned in admission alone, each entry with its unit and its reason (`ablation.py` prints what it buys)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTuning:
    """Entries of the room. A neutral value for each is in `simulation.ablations`."""

    first_margin: float = 1.1
    """Actual over predicted latency before any request near its limit has told."""
    recent_requests: int = 50
    """Requests that errors of predictions and bytes per token are learned from; after as many rejections in a row a
    margin narrows, as no request tells it that it is too wide."""
    usual_output_tokens: float = 256.0
    """Expected of an answer before any has ended."""
    latency_floor: float = 0.1
    """Share of a promise that is added to latencies before they are compared: a millisecond is no factor of two."""
    margin_rate: float = 0.05
    """Largest step of a margin for one request, in the logarithm."""
    of_spread: float = 0.2
    """Share of how far samples lie from the margin, that a step is at most: it must not move by more than they vary."""
    steps_level: float = 0.996
    """Level of the TPOT margin: a batch with too long steps is late for all that are in it, not for one request."""
    overflow: float = 0.05
    """Share of a KV cache by which answers may be expected to outgrow it: what does not fit is computed twice."""
    demand_seconds: float = 20.0
    """Memory of what each class asks for: long enough for a rate of a few requests a second."""
    demand_sigmas: float = 2.0
    """Standard deviations of a class's Poisson demand that are kept for it above the mean."""
    neighbour_seconds: float = 60.0
    """Age at which a slow-down by busy neighbours is forgotten, so that a cluster that turned all away tries again."""
    least_slowdown: float = 0.25
    """Slow-down for each busy neighbour below which workers have hardware of their own: ordinary errors are smaller."""


TUNING: Final = AdmissionTuning()
