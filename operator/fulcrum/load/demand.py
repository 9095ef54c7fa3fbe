"""What arrives, as the balance reckons with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fulcrum.api.durations import seconds
from fulcrum.api.quantities import three_digits
from fulcrum.api.types import InferenceClusterSpec


@dataclass(frozen=True, slots=True)
class ClassPart:
    """Requests of one QoS class."""

    name: str
    share: float
    """Of all requests, 0 to 1."""
    relative_tokens: float
    """Their mean prompt against the mean of all."""


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
    """Variance over mean of the arrivals in short spans (`load.bursts`); 1: Poisson."""
    classes: tuple[ClassPart, ...] = ()
    """What comes of each QoS class, all together 1; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each role has to carry; the rates differ where each is the most of another time."""

    rate: float
    """Requests per second that arrive."""
    prefill: Demand
    decode: Demand

    @classmethod
    def of(cls, demand: Demand) -> Load:
        """Return the load of requests that all need both roles."""
        return cls(rate=demand.rate, prefill=demand, decode=demand)

    def __str__(self) -> str:
        """For people: `2.13 requests/s of 177 + 10 tokens`."""
        rate = three_digits(self.rate)
        return f"{rate:,g} requests/s of {self.prefill.isl_tokens:.0f} + {self.decode.osl_tokens:.0f} tokens"

    def scaled(self, factor: float) -> Load:
        """Return the load with `factor` times the requests."""
        return Load(
            rate=self.rate * factor,
            prefill=replace(self.prefill, rate=self.prefill.rate * factor),
            decode=replace(self.decode, rate=self.decode.rate * factor),
        )

    def at_least(self, other: Load) -> Load:
        """Return the larger of both, rate by rate and length by length."""
        return Load(
            rate=max(self.rate, other.rate),
            prefill=_larger(self.prefill, other.prefill),
            decode=_larger(self.decode, other.decode),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """The promise, in seconds."""

    ttft_seconds: float
    tpot_seconds: float
    attainment: float
    """Share of requests for which both must hold, 0 to 1."""


def promised(spec: InferenceClusterSpec) -> LatencyTargets:
    """Return the SLO of a spec, in seconds."""
    return LatencyTargets(
        ttft_seconds=seconds(spec.slo.ttft), tpot_seconds=seconds(spec.slo.tpot), attainment=spec.slo.attainment
    )


def _larger(one: Demand, other: Demand) -> Demand:
    return replace(
        one,
        rate=max(one.rate, other.rate),
        isl_tokens=max(one.isl_tokens, other.isl_tokens),
        osl_tokens=max(one.osl_tokens, other.osl_tokens),
    )
