"""From measured samples to the six numbers of the capacity model, and to a curve where they do not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.decode_curve import fitted_curve
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
CURVED_BATCHES: Final = 3
"""Loaded batch sizes from which on a line can be seen to miss one of them."""
CURVED: Final = 0.1
"""Share by which a line has to miss a loaded batch size for a curve to be made, which follows the noise of each size.
By the roofline dense models stay below it; mixtures of experts reach 0.2, and 0.36 between the sizes."""

POOLING_STEP_SECONDS: Final = 0.001
"""What an engine that makes no tokens reports as its decode step (s): all times are divided by one, and its answers are
complete with their prompt, so that none is waited for."""


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

    Decode is fitted to batches from `LOADED_BATCH` on where there are two sizes of them, else to all. Where the line
    misses them there is a curve besides, through all.
    """
    prefills = [sample for sample in prefills if sample.seconds > 0]
    decodes = [sample for sample in decodes if sample.seconds > 0]
    if len({sample.prompt_tokens for sample in prefills}) < 2 or not decodes:
        return None
    loaded = [sample for sample in decodes if sample.batch >= LOADED_BATCH]
    if len({sample.batch for sample in loaded}) < 2:
        loaded = decodes
    constant, linear, even = fit_relative(
        [(1.0, float(tokens := sample.prompt_tokens), tokens + tokens**2 / LEAST_EVEN_TOKENS) for sample in prefills],
        [sample.seconds for sample in prefills],
    )
    prefill = constant, linear + even, even / LEAST_EVEN_TOKENS
    decode = fit_relative(
        [(1.0, float(sample.batch), sample.context_tokens) for sample in loaded],
        [sample.seconds for sample in loaded],
    )
    curve = _curve(decodes) if _misses(decode, _means(loaded)) else ()
    return SpeedCoefficients.of(prefill=prefill, decode=decode, decode_curve=curve)


def fit_pooling(prefills: Sequence[PrefillSample]) -> SpeedCoefficients | None:
    """Fit the speed of an engine that makes no tokens; None with fewer than two prompt lengths.

    Its time grows with the tokens of a request and not with their square: a request is often a list of texts, each of
    which attends to itself alone.
    """
    prefills = [sample for sample in prefills if sample.seconds > 0]
    if len({sample.prompt_tokens for sample in prefills}) < 2:
        return None
    constant, linear = fit_relative(
        [(1.0, float(sample.prompt_tokens)) for sample in prefills], [sample.seconds for sample in prefills]
    )
    return SpeedCoefficients.of(prefill=(constant, linear, 0.0), decode=(POOLING_STEP_SECONDS, 0.0, 0.0))


def _misses(line: Sequence[float], means: Sequence[tuple[float, float, float]]) -> bool:
    a, b, c = line
    errors = [abs(a + b * batch + c * context - seconds) / seconds for batch, context, seconds in means]
    return len(errors) >= CURVED_BATCHES and max(errors) > CURVED


def _curve(decodes: Sequence[DecodeSample]) -> tuple[DecodePoint, ...]:
    """Return the curve with one cost of context for all batches: in a small one it is less than the noise."""
    means = {batch: (context, seconds) for batch, context, seconds in _means(decodes)}
    both = squared = 0.0
    for sample in decodes:
        context, seconds = means[sample.batch]
        both += (sample.context_tokens - context) * (sample.seconds - seconds) / seconds**2
        squared += ((sample.context_tokens - context) / seconds) ** 2
    each = max(0.0, both / squared) if squared > 0 else 0.0
    return fitted_curve(_means(decodes), (0.0, 0.0, each))


def _means(decodes: Sequence[DecodeSample]) -> list[tuple[float, float, float]]:
    """Return each batch size with its mean context tokens and seconds."""
    found: list[tuple[float, float, float]] = []
    for batch in sorted({sample.batch for sample in decodes}):
        alike = [sample for sample in decodes if sample.batch == batch]
        found.append(
            (batch, fmean(sample.context_tokens for sample in alike), fmean(sample.seconds for sample in alike))
        )
    return found
