"""From measured samples to the six numbers of the capacity model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.nonnegative import fit_relative


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSample:
    """Time that the engine took for one prompt."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSample:
    """Time of one decode step of a batch."""

    batch: int
    context_tokens: float
    """Summed over the batch."""
    seconds: float


def fit_speed(prefills: Sequence[PrefillSample], decodes: Sequence[DecodeSample]) -> SpeedCoefficients | None:
    """Fits both formulas of `SpeedCoefficients`; None with fewer than two prompt lengths or without a decode sample."""
    prefills = [sample for sample in prefills if sample.seconds > 0]
    decodes = [sample for sample in decodes if sample.seconds > 0]
    if len({sample.prompt_tokens for sample in prefills}) < 2 or not decodes:
        return None
    prefill = fit_relative(
        [(1.0, float(sample.prompt_tokens), float(sample.prompt_tokens) ** 2) for sample in prefills],
        [sample.seconds for sample in prefills],
    )
    decode = fit_relative(
        [(1.0, float(sample.batch), sample.context_tokens) for sample in decodes],
        [sample.seconds for sample in decodes],
    )
    return SpeedCoefficients.of(prefill=prefill, decode=decode)
