"""What arrives, as the balance reckons with it."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.durations import seconds
from fulcrum.api.types import InferenceClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A stream of requests: its rate and the first two moments of its lengths."""

    rate: float
    """Requests per second."""
    isl_tokens: float
    """Mean prompt tokens."""
    osl_tokens: float
    """Mean output tokens."""
    isl_cv2: float = 1.0
    """Squared coefficient of variation of the prompt lengths (0: all alike; 1: as spread as exponential ones)."""
    osl_cv2: float = 1.0
    prefix_hit: float = 0.0
    """Share of prompt tokens that the prefix cache answers, 0 to 1."""
    dispersion: float = 1.0
    """Variance over mean of the arrivals in short spans (`balance.bursts`); 1: Poisson."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The promise, in seconds."""

    ttft_seconds: float
    tpot_seconds: float
    attainment: float
    """Share of requests for which both must hold, 0 to 1."""


def promised(spec: InferenceClusterSpec) -> Slo:
    """Return the SLO of a spec, in seconds."""
    return Slo(ttft_seconds=seconds(spec.slo.ttft), tpot_seconds=seconds(spec.slo.tpot), attainment=spec.slo.attainment)
