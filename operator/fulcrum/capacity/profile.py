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

with either `coefficients` (`decodeCurve` in them is optional: `capacity.decode_curve`) or both lists; `maxBatch`,
`maxBatchedTokens`, `transferBaseSeconds` and `transferSecondsPerToken` are optional. All is in seconds and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.decode_curve import curve_problem, fitted_curve
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
    if (given := profile.coefficients) is None:
        _require_samples(profile)
    elif any(not math.isfinite(each) or each < 0 for each in msgspec.structs.astuple(given)[:6]):
        raise ProfileError("coefficients must not be negative")
    elif (problem := curve_problem(given.decode_curve)) is not None:
        raise ProfileError(f"coefficients.decodeCurve {problem}")
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


def profiled_speed(profile: Profile, *, prior: WorkerSpeed) -> WorkerSpeed:
    """The speed that a profile describes; what it leaves out of transfers is the prior's (a roofline)."""
    speed = profile_speed(profile)
    if speed.transfer_base_seconds or speed.transfer_seconds_per_token:
        return speed
    return replace(
        speed,
        transfer_base_seconds=prior.transfer_base_seconds,
        transfer_seconds_per_token=prior.transfer_seconds_per_token,
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
    curve = fitted_curve([(row.batch, row.context_tokens, row.seconds_per_step) for row in profile.decode], decode)
    return SpeedCoefficients.of(prefill=prefill, decode=decode, decode_curve=curve)


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
) -> WorkerSpeed:
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

    def point(batch: float, of: tuple[float, float, float]) -> DecodePoint:
        seconds = of[0] * scale + host_step_seconds + (of[2] * scale + host_request_seconds) * batch
        return DecodePoint(batch=batch, seconds=seconds, seconds_per_token=of[1] * scale)

    return WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=prefill[0] * scale + pipeline * stage_seconds,
            prefill_b=prefill[1] * scale,
            prefill_c=prefill[2] * scale,
            decode_a=small[0] * scale + host_step_seconds,
            decode_b=small[2] * scale + host_request_seconds,
            decode_c=small[1] * scale,
            decode_curve=(
                point(1, small),
                point(from_batch - 1, small),
                point(from_batch, large),
                point(2 * from_batch, large),
            ),
        ),
        kv_capacity_tokens=kv_capacity_tokens,
        max_batch=max_batch,
        max_batched_tokens=max_batched_tokens,
        transfer_base_seconds=transfer_base_seconds,
        transfer_seconds_per_token=transfer_seconds_per_token,
        source=SpeedSource.PROFILE,
    )


def _three(numbers: Any) -> tuple[float, float, float]:
    a, b, c = (float(each) for each in numbers)
    return a, b, c
