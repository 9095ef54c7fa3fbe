"""What a worker reports about its speed, one row per interval."""

from __future__ import annotations

import math

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, WorkCounters


class PrefillRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Prompts that were prefilled one after the other, summed."""

    prompts: int
    tokens: float
    """Summed prompt tokens, those from a prefix cache left out."""
    squared_tokens: float
    """Summed squares of the prompt lengths."""
    seconds: float
    """Summed prefill time."""

    @property
    def features(self) -> tuple[float, float, float]:
        """What prefill_a, prefill_b and prefill_c are multiplied with to give `seconds`."""
        return float(self.prompts), self.tokens, self.squared_tokens

    @property
    def usable(self) -> bool:
        """Whether all numbers make sense."""
        return _usable(*self.features, self.seconds)


class DecodeRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Decode steps of an interval, on average."""

    batch: float
    context_tokens: float
    """Summed over the batch."""
    seconds_per_step: float

    @property
    def features(self) -> tuple[float, float, float]:
        """What decode_a, decode_b and decode_c are multiplied with to give `seconds_per_step`."""
        return 1.0, self.batch, self.context_tokens

    @property
    def usable(self) -> bool:
        """Whether all numbers make sense."""
        return _usable(*self.features, self.seconds_per_step)


def _usable(count: float, first: float, second: float, seconds: float) -> bool:
    return count > 0 and seconds > 0 and first > 0 and second >= 0 and math.isfinite(first + second + seconds)


def ranks_of(report: LoadReport) -> int:
    """Return the data-parallel ranks of the worker that reports; an agent that knows none has one."""
    return len(report.ranks or ()) or 1


def rows_between(
    before: LoadReport, after: LoadReport, *, seconds: float, isl_cv2: float = 1.0
) -> tuple[PrefillRow | None, DecodeRow | None]:
    """What a worker did in the `seconds` between two of its reports, as far as they say it without doubt.

    None for a part that did not happen, is unknown, or cannot be told apart. vLLM books a prompt's time from its
    scheduling, so while prompts overlap (more than a second of it per second) their times are not their own: a prefill
    worker was busy all the time then, with these prompts; of a mixed one nothing can be said. Tokens between which
    prompts were prefilled took longer than a decode step. A prompt whose KV a peer has computed counts as prefilled in
    no more than a step (vLLM 0.32.0), so decode workers say nothing about prefill, and it hardly stretches the steps of
    others. Squares of lengths follow from `isl_cv2`; contexts from the KV usage. Ranks of data parallel are as many
    engines: what all of them did together is that of one on average.
    """
    if before.work is None or after.work is None or seconds <= 0:
        return None, None
    prompts = after.work.prompts - before.work.prompts
    read = after.work.prompt_tokens - before.work.prompt_tokens
    tokens = read - (after.work.cached_tokens - before.work.cached_tokens)
    prefill_seconds = after.work.prefill_seconds - before.work.prefill_seconds
    steps = after.work.decode_tokens - before.work.decode_tokens
    decode_seconds = after.work.decode_seconds - before.work.decode_seconds
    if min(prompts, tokens, prefill_seconds, steps, decode_seconds) < 0:
        return None, None  # the engine started again in between
    prefill, ranks = None, ranks_of(after)
    # A prompt whose KV came from a peer has its first token after about one step; more than two were spent computing.
    here = _one_prefilling_role(before, after) and (
        steps == 0 or prefill_seconds * steps > 2 * decode_seconds * prompts
    )
    if after.role is Role.PREFILL:
        prefill_seconds = min(prefill_seconds, ranks * seconds)
    if here and prompts > 0 and tokens > 0 and 0 < prefill_seconds <= ranks * seconds:
        squared = tokens * tokens / prompts * (1 + max(0.0, isl_cv2))
        prefill = PrefillRow(prompts=prompts, tokens=tokens, squared_tokens=squared, seconds=prefill_seconds)
    decode = None
    # Prefill beyond a fifth of an interval stretches the steps between tokens: they are no decode steps any more.
    if _computed_nothing(before.work, after.work) or prefill_seconds <= 0.2 * ranks * seconds:
        decode = decode_row(before, after, seconds=seconds)
    return prefill, decode


def _computed_nothing(before: WorkCounters, after: WorkCounters) -> bool:
    """Whether it is known that all prompts of the interval were computed elsewhere."""
    return before.computed_tokens is not None and before.computed_tokens == after.computed_tokens


def _one_prefilling_role(before: LoadReport, after: LoadReport) -> bool:
    return after.role is not Role.DECODE and (before.role, before.role_epoch) == (after.role, after.role_epoch)


def decode_row(before: LoadReport, after: LoadReport, *, seconds: float) -> DecodeRow | None:
    """Decode steps in the `seconds` between two reports of a worker, whatever else it did; None where unknown."""
    if before.work is None or after.work is None or seconds <= 0:
        return None
    steps = after.work.decode_tokens - before.work.decode_tokens
    decode_seconds = after.work.decode_seconds - before.work.decode_seconds
    if steps <= 0 or decode_seconds <= 0 or before.running is None or after.running is None:
        return None  # started again, or unknown
    at_work = [report for report in (before, after) if report.running and report.kv_usage is not None]
    if not at_work or after.kv_capacity_tokens is None:
        return None
    # Every token of a step takes the whole step, so the seconds between tokens add up to batch * time.
    ranks = ranks_of(after)
    at_once = decode_seconds / seconds / ranks
    batch = max(1.0, at_once)
    context_share = sum(report.kv_usage or 0.0 for report in at_work) / len(at_work)
    if not (before.running and after.running):
        if steps < 8:  # so few tokens are a matter of chance
            return None
        # Idle at times. A request that comes by chance finds as many as there are on average, and makes it one more
        # (Poisson arrivals see time averages).
        batch = min(1.0 + at_once, float(after.max_batch or math.inf))
        context_share *= batch * ranks / sum(report.running or 0 for report in at_work)
    return DecodeRow(
        batch=batch,
        context_tokens=context_share * after.kv_capacity_tokens / ranks,
        seconds_per_step=decode_seconds / steps,
    )
