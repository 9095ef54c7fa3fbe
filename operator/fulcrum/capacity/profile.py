"""Speeds from a profile: a JSON document, or the fits that DistServe publishes.

A profile is what was measured of a worker. It carries fitted coefficients, or the measurements, which are fitted
here::

    {
      "model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "H100-SXM-80GB", "tensor": 1, "pipeline": 1,
      "kvCapacityTokens": 440000,
      "coefficients": {"prefillA": 0.004, "prefillB": 1.8e-05, "prefillC": 8.5e-10,
                       "decodeA": 0.007, "decodeB": 1e-05, "decodeC": 2.8e-08},
      "prefill": [{"prompts": 1, "tokens": 1024, "squaredTokens": 1048576, "seconds": 0.023}, ...],
      "decode": [{"batch": 8, "contextTokens": 8192, "secondsPerStep": 0.0075}, ...]
    }

with either `coefficients` or both lists; `maxBatch`, `maxBatchedTokens`, `transferBaseSeconds` and
`transferSecondsPerToken` are optional. Everything is in seconds and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import MAX_BATCH, SpeedSource, WorkerSpeed

_MILLI: Final = 1e-3


class ProfileError(ValueError):
    """A profile that cannot be used. Says where and why."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A profile document; the text at the top of this module shows one."""

    model: str
    accelerator: str
    kv_capacity_tokens: int
    tensor: int = 1
    pipeline: int = 1
    coefficients: SpeedCoefficients | None = None
    prefill: tuple[PrefillRow, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    max_batch: int = MAX_BATCH
    max_batched_tokens: int = 8192
    transfer_base_seconds: float = 0.0
    transfer_seconds_per_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseSpeed:
    """A worker whose decode steps follow other coefficients from a batch size on (DistServe, arXiv 2401.09670)."""

    small: WorkerSpeed
    """Everything, and decode below `from_batch`."""
    from_batch: int
    decode_a: float
    decode_b: float
    decode_c: float

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache of one worker holds."""
        return self.small.kv_capacity_tokens

    @property
    def max_batch(self) -> int:
        """Most requests in one engine step."""
        return self.small.max_batch

    @property
    def max_batched_tokens(self) -> int:
        """Token budget of one engine step."""
        return self.small.max_batched_tokens

    def prefill_seconds(self, tokens: float, squared_tokens: float) -> float:
        """Seconds of one prefill step over prompts with summed lengths `tokens` and summed squares `squared_tokens`."""
        return self.small.prefill_seconds(tokens, squared_tokens)

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Seconds of one decode step of `batch` requests whose contexts sum up to `context_tokens`."""
        if batch < self.from_batch:
            return self.small.decode_step_seconds(batch, context_tokens)
        return self.decode_a + self.decode_b * batch + self.decode_c * context_tokens

    def transfer_seconds(self, tokens: float) -> float:
        """Seconds that the KV of a prompt of `tokens` takes from a prefill to a decode worker."""
        return self.small.transfer_seconds(tokens)


def parse_profile(document: bytes | str) -> Profile:
    """Reads and checks a profile document.

    Raises:
        ProfileError: not JSON, a field is wrong, or there is nothing to fit.
    """
    try:
        profile = msgspec.json.decode(document, type=Profile)
    except msgspec.ValidationError as error:
        raise ProfileError(f"the profile does not fit its schema: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"the profile is not JSON: {error}") from None
    if profile.kv_capacity_tokens < 1 or profile.max_batch < 1 or profile.max_batched_tokens < 1:
        raise ProfileError("kvCapacityTokens, maxBatch and maxBatchedTokens must be at least 1")
    if min(profile.transfer_base_seconds, profile.transfer_seconds_per_token) < 0:
        raise ProfileError("transferBaseSeconds and transferSecondsPerToken must not be negative")
    given = profile.coefficients
    if given is not None and any(not math.isfinite(each) or each < 0 for each in msgspec.structs.astuple(given)):
        raise ProfileError("coefficients must not be negative")
    if given is None:
        _require_samples(profile)
    return profile


def profile_speed(profile: Profile) -> WorkerSpeed:
    """The speed that a profile describes."""
    return WorkerSpeed(
        coefficients=profile.coefficients or _fitted(profile),
        kv_capacity_tokens=profile.kv_capacity_tokens,
        max_batch=profile.max_batch,
        max_batched_tokens=profile.max_batched_tokens,
        transfer_base_seconds=profile.transfer_base_seconds,
        transfer_seconds_per_token=profile.transfer_seconds_per_token,
        source=SpeedSource.PROFILE,
    )


def _require_samples(profile: Profile) -> None:
    if len({(row.tokens / max(1, row.prompts)) for row in profile.prefill}) < 2:
        raise ProfileError("without coefficients, `prefill` needs rows of at least two prompt lengths")
    if len({row.batch for row in profile.decode}) < 2:
        raise ProfileError("without coefficients, `decode` needs rows of at least two batch sizes")
    if not (all(row.usable for row in profile.prefill) and all(row.usable for row in profile.decode)):
        raise ProfileError("rows of `prefill` and `decode` need positive, finite numbers")


def _fitted(profile: Profile) -> SpeedCoefficients:
    prefill = fit_relative([row.features for row in profile.prefill], [row.seconds for row in profile.prefill])
    decode = fit_relative([row.features for row in profile.decode], [row.seconds_per_step for row in profile.decode])
    return SpeedCoefficients.of(prefill=prefill, decode=decode)


def distserve_speed(
    document: Mapping[str, Any],
    model: str,
    *,
    tensor: int,
    pipeline: int = 1,
    kv_capacity_tokens: int,
    max_batch: int = 1024,
    max_batched_tokens: int = 8192,
    transfer_base_seconds: float = 0.0,
    transfer_seconds_per_token: float = 0.0,
    host_step_seconds: float = 0.0,
    host_request_seconds: float = 0.0,
    stage_seconds: float = 1e-3,
) -> PiecewiseSpeed:
    """A fit of DistServe's repository: a parsed document by model and tensor parallelism, in milliseconds.

    `prefill = (a + b * sum(l) + c * sum(l^2)) / pp + pp`, `decode = (a + b * sum(context) + c * batch) / pp`, with
    other decode coefficients from a batch size on. These are the times that one pipeline stage is busy with forward
    passes. `stage_seconds` is the millisecond that a stage adds to prefill; DistServe's simulator has dropped it since.
    `host_step_seconds` and `host_request_seconds` are what the serving process adds to each decode step, and
    to it for each request: between two steps it schedules, detokenizes and answers, and the GPU waits.

    Raises:
        ProfileError: the document has no such fit.
    """
    try:
        fit = document[model][str(tensor)]
        prefill = _three(fit["prefill"])
        small, large = _three(fit["decoding_smallbs"]), _three(fit["decoding_largebs"])
        from_batch = int(fit["decoding_large_small_bs_threshold"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"no DistServe fit of {model} at tensor parallelism {tensor}: {error!r}") from None
    scale = _MILLI / pipeline
    worker = WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=prefill[0] * scale + pipeline * stage_seconds,
            prefill_b=prefill[1] * scale,
            prefill_c=prefill[2] * scale,
            decode_a=small[0] * scale + host_step_seconds,
            decode_b=small[2] * scale + host_request_seconds,
            decode_c=small[1] * scale,
        ),
        kv_capacity_tokens=kv_capacity_tokens,
        max_batch=max_batch,
        max_batched_tokens=max_batched_tokens,
        transfer_base_seconds=transfer_base_seconds,
        transfer_seconds_per_token=transfer_seconds_per_token,
        source=SpeedSource.PROFILE,
    )
    return PiecewiseSpeed(
        small=worker,
        from_batch=from_batch,
        decode_a=large[0] * scale + host_step_seconds,
        decode_b=large[2] * scale + host_request_seconds,
        decode_c=large[1] * scale,
    )


def _three(numbers: Any) -> tuple[float, float, float]:
    a, b, c = (float(each) for each in numbers)
    return a, b, c
