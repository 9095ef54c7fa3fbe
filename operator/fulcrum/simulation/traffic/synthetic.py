"""Synthetic traffic: phases that lean on prefill or on decode, Gamma arrivals, log-normal lengths; seeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fulcrum.simulation.traffic.trace import Request

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of time with one arrival rate and one mix of lengths."""

    seconds: float
    requests_per_second: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    spread: float = 0.5
    """Sigma of the log-normal lengths; 0 makes every request the mean."""
    qos_class: str | None = None

    def __post_init__(self) -> None:
        for field in ("seconds", "requests_per_second", "prompt_tokens_mean", "output_tokens_mean"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be above 0, got {getattr(self, field)}")
        if self.spread < 0:
            raise ValueError(f"spread must not be negative, got {self.spread}")


PREFILL_HEAVY: Final = Phase(seconds=30, requests_per_second=1, prompt_tokens_mean=384, output_tokens_mean=12)
"""Long questions, short answers: time goes into prefill."""
DECODE_HEAVY: Final = Phase(seconds=30, requests_per_second=1, prompt_tokens_mean=48, output_tokens_mean=64)
"""Short questions, long answers: time goes into decode."""


def generate(phases: Sequence[Phase], *, seed: int, cv: float = 1.0) -> tuple[Request, ...]:
    """Requests of the phases one after the other; the same seed gives the same trace.

    `cv` is the coefficient of variation of the time between two arrivals: 1 is Poisson. Raises ValueError unless it is
    above 0.
    """
    import numpy as np

    if not cv > 0:
        raise ValueError(f"cv must be above 0, got {cv}")
    random = np.random.default_rng(seed)
    requests: list[Request] = []
    phase_start_seconds = 0.0
    for phase in phases:
        arrival_seconds, scale = 0.0, cv**2 / phase.requests_per_second
        while (arrival_seconds := arrival_seconds + random.gamma(1 / cv**2, scale)) < phase.seconds:
            requests.append(
                Request(
                    arrival_seconds=phase_start_seconds + arrival_seconds,
                    prompt_tokens=_length(random, phase.prompt_tokens_mean, phase.spread),
                    output_tokens=_length(random, phase.output_tokens_mean, phase.spread),
                    qos_class=phase.qos_class,
                )
            )
        phase_start_seconds += phase.seconds
    return tuple(requests)


def repeated(phases: Sequence[Phase], *, total_seconds: float) -> tuple[Phase, ...]:
    """The phases in turn, as often as it takes to fill `total_seconds`; the last one is cut short."""
    filled: list[Phase] = []
    left_seconds = total_seconds
    while left_seconds > 0:
        phase = phases[len(filled) % len(phases)]
        filled.append(replace(phase, seconds=min(phase.seconds, left_seconds)))
        left_seconds -= phase.seconds
    return tuple(filled)


def _length(random: Generator, mean: float, spread: float) -> int:
    """Log-normal with the wanted mean: E = exp(mu + sigma^2 / 2)."""
    return max(1, round(random.lognormal(math.log(mean) - spread**2 / 2, spread)))
