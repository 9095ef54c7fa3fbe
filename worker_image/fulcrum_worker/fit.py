"""From measured samples to the six numbers of the capacity model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.nonnegative import fit_relative

LEAST_EVEN_TOKENS: Final = 500
"""Prompt tokens from which on attention may take more time than all that is linear in them.

By its operations that begins at about six hidden sizes, and a quarter of that was measured for the smallest model in
use. What grows faster is a short prompt that something held up; squared, that would be minutes for a long
one.
"""
LOADED_BATCH: Final = 8
"""Requests from which on a step is that of a worker under load: with fewer, a mixture of experts reads few of them, and
kernels wait for their launch. A line through both would be wrong for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSample:
    """Time that the engine took for one prompt."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSample:
    """Time until each request of a batch has its next token."""

    batch: int
    context_tokens: float
    """Summed over the batch."""
    seconds: float


def fit_speed(prefills: Sequence[PrefillSample], decodes: Sequence[DecodeSample]) -> SpeedCoefficients | None:
    """Fits both formulas of `SpeedCoefficients`; None with fewer than two prompt lengths or without a decode sample.

    Decode is fitted to batches from `LOADED_BATCH` on where there are two sizes of them, else to all.
    """
    prefills = [sample for sample in prefills if sample.seconds > 0]
    decodes = [sample for sample in decodes if sample.seconds > 0]
    if len({sample.prompt_tokens for sample in prefills}) < 2 or not decodes:
        return None
    loaded = [sample for sample in decodes if sample.batch >= LOADED_BATCH]
    if len({sample.batch for sample in loaded}) > 1:
        decodes = loaded
    constant, linear, even = fit_relative(
        [(1.0, float(tokens := sample.prompt_tokens), tokens + tokens**2 / LEAST_EVEN_TOKENS) for sample in prefills],
        [sample.seconds for sample in prefills],
    )
    prefill = constant, linear + even, even / LEAST_EVEN_TOKENS
    decode = fit_relative(
        [(1.0, float(sample.batch), sample.context_tokens) for sample in decodes],
        [sample.seconds for sample in decodes],
    )
    return SpeedCoefficients.of(prefill=prefill, decode=decode)
