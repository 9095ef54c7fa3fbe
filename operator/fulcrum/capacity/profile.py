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
`fulcrum capacity --export` writes one of a running worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.accelerators import UnknownAcceleratorError, accelerator
from fulcrum.capacity.config_fields import MOST_BYTES
from fulcrum.capacity.decode_curve import LEAST_SECONDS, LONGEST_SECONDS, MOST_POINTS, curve_problem, fitted_curve
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import MAX_BATCH, SpeedSource, WorkerSpeed
from fulcrum.capacity.trust import typical_seconds

_OR_LARGE: Final = f", nor above {LONGEST_SECONDS:g} s"


class ProfileError(ValueError):
    """A profile that cannot be used. Says where and why."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A profile document; the text at the top of this module shows one."""

    model: str
    accelerator: str
    kv_capacity_tokens: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    coefficients: SpeedCoefficients | None = None
    prefill: tuple[PrefillRow, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    max_batch: int = MAX_BATCH
    max_batched_tokens: int = 8192
    transfer_base_seconds: float = 0.0
    transfer_seconds_per_token: float = 0.0


_WIRE: Final = {each.name: each.encode_name for each in msgspec.structs.fields(Profile)}


def parse_profile(document: bytes | str) -> Profile:
    """Reads and checks a profile document. What it has measured is fitted: the profile has coefficients.

    Raises:
        ProfileError: too large, not JSON, a field is wrong, or there is nothing to fit.
    """
    if len(document) > MOST_BYTES:
        raise ProfileError(f"the profile has {len(document)} bytes, and {MOST_BYTES} are the most: leave rows out")
    try:
        profile = msgspec.json.decode(document, type=Profile)
    except msgspec.ValidationError as error:
        raise ProfileError(f"the profile does not fit its schema: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProfileError(f"the profile is not JSON: {error}") from None
    # Larger counts are faults, and arithmetic with floats would overflow.
    for name, most in (("kv_capacity_tokens", 2**40), ("max_batch", 2**16), ("max_batched_tokens", 2**30)):
        if not 1 <= getattr(profile, name) <= most:
            raise ProfileError(f"{_WIRE[name]} must be at least 1 and at most {most}")
    transfers = (profile.transfer_base_seconds, profile.transfer_seconds_per_token)
    if not all(0 <= each <= LONGEST_SECONDS for each in transfers):
        raise ProfileError(f"transferBaseSeconds and transferSecondsPerToken must not be negative{_OR_LARGE}")
    if profile.coefficients is None:
        _require_samples(profile)
        try:
            profile = msgspec.structs.replace(profile, coefficients=_fitted(profile))
        except (ArithmeticError, ValueError) as error:  # numpy's LinAlgError is a ValueError
            raise ProfileError(f"the rows of `prefill` and `decode` cannot be fitted ({error})") from None
    _require_sense(profile_speed(profile))
    return profile


def profile_speed(profile: Profile) -> WorkerSpeed:
    """The speed that a profile describes."""
    return WorkerSpeed(
        coefficients=profile.coefficients or _fitted(profile),
        kv_capacity_tokens=profile.kv_capacity_tokens,
        ranks=profile.data,
        max_batch=profile.max_batch,
        max_batched_tokens=profile.max_batched_tokens,
        transfer_base_seconds=profile.transfer_base_seconds,
        transfer_seconds_per_token=profile.transfer_seconds_per_token,
        source=SpeedSource.PROFILE,
    )


def profiled_speed(profile: Profile, *, transfer: TransferCost) -> WorkerSpeed:
    """The speed that a profile describes; where it says nothing of transfers, they cost `transfer`."""
    speed = profile_speed(profile)
    says = speed.transfer_base_seconds or speed.transfer_seconds_per_token
    return speed if says else speed.with_transfer(transfer)


def profile_document(
    speed: WorkerSpeed, *, model: str, accelerator_name: str, tensor: int, pipeline: int, data: int
) -> dict[str, Any]:
    """The profile, as JSON values, that is read as this speed; without transfers, which no worker measures alone."""
    profile = Profile(
        model=model,
        accelerator=accelerator_name,
        kv_capacity_tokens=speed.kv_capacity_tokens,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        coefficients=speed.coefficients,
        max_batch=speed.max_batch,
        max_batched_tokens=speed.max_batched_tokens,
    )
    return {name: value for name, value in msgspec.to_builtins(profile).items() if value not in ((), [], 0.0)}


def same_worker(profile: Profile, *, accelerator_name: str, tensor: int, pipeline: int, data: int) -> bool:
    """Report whether a profile is of workers with this accelerator, in whatever spelling, and parallelism."""
    measured = (_known_name(profile.accelerator), profile.tensor, profile.pipeline, profile.data)
    return measured == (_known_name(accelerator_name), tensor, pipeline, data)


def _known_name(accelerator_name: str) -> str:
    try:
        return accelerator(accelerator_name).name
    except UnknownAcceleratorError:
        return accelerator_name


def _require_sense(speed: WorkerSpeed) -> None:
    given = speed.coefficients
    if not all(0 <= each <= LONGEST_SECONDS for each in msgspec.structs.astuple(given)[:6]):
        raise ProfileError(f"coefficients must not be negative{_OR_LARGE}")
    if (problem := curve_problem(given.decode_curve)) is not None:
        raise ProfileError(f"coefficients.decodeCurve {problem}")
    if min(typical_seconds(speed)) < LEAST_SECONDS:
        raise ProfileError("coefficients must give a prefill and a decode step that take longer than 1 us")


def _require_samples(profile: Profile) -> None:
    if len({(row.tokens / max(1, row.prompts)) for row in profile.prefill}) < 2:
        raise ProfileError("without coefficients, `prefill` needs rows of at least two prompt lengths")
    if len({row.batch for row in profile.decode}) < 2:
        raise ProfileError("without coefficients, `decode` needs rows of at least two batch sizes")
    if not (all(row.usable for row in profile.prefill) and all(row.usable for row in profile.decode)):
        raise ProfileError("rows of `prefill` and `decode` need positive, finite numbers")
    if len({row.batch for row in profile.decode}) > MOST_POINTS:
        raise ProfileError(f"`decode` has rows of more than {MOST_POINTS} batch sizes: leave some out")
    rows = [(*row.features, row.seconds) for row in profile.prefill]
    rows += [(*row.features, row.seconds_per_step) for row in profile.decode]
    # Within these bounds squares of quotients fit into a float.
    if any(max(row) > 1e18 or row[-1] < 1e-9 for row in rows):
        raise ProfileError("rows of `prefill` and `decode` need numbers up to 1e+18, and times from 1 ns on")


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
    scale = 1e-3 / pipeline  # from milliseconds

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
