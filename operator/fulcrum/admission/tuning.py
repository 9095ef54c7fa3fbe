"""What is tuned in admission alone, each entry with its unit and its reason (`ablation.py` prints what it buys)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTuning:
    """Entries of the room. A neutral value for each is in `benchmarks/contests/ablations.py`."""

    margin_rate: float = 0.05
    """Step of a margin for one late request, in the logarithm: smaller ones find a margin of 1.5 too late."""
    usual_output_tokens: float = 256.0
    """Expected of an answer before any has ended."""
    overflow: float = 0.05
    """Share of a KV cache by which answers may be expected to outgrow it: what does not fit is computed twice."""
    demand_seconds: float = 20.0
    """Memory of what each class asks for: long enough for a rate of a few requests a second."""
    pass_share: float = 0.02
    """Time between two passes over the queue, as a share of the TTFT promise: so much of it a place may stay unused."""
    pass_refusals: int = 4
    """Waiting requests that may be found not to fit before a pass ends: bounds its cost (about 50 us each), and lets
    small requests pass large ones."""


TUNING: Final = AdmissionTuning()
