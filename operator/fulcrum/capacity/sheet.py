"""Everything about one worker on a sheet, for people and for scripts."""

from __future__ import annotations

import msgspec

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import (
    Link,
    kv_bytes_per_token,
    kv_bytes_per_token_and_gpu,
    transfer_cost,
    weight_bytes_per_gpu,
)
from fulcrum.capacity.profile import Profile, profiled_speed
from fulcrum.capacity.roofline import GRAPHS, USUAL_BATCHES, Efficiency, shape_speed
from fulcrum.capacity.speed import WorkerSpeed


class PrefillLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One prompt alone."""

    tokens: int
    seconds: float


class DecodeLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One batch, at several contexts per request; None where its KV does not fit."""

    batch: int
    context_tokens: tuple[int, ...]
    seconds: tuple[float | None, ...]


class TransferLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The KV of one prompt over one kind of link."""

    link: str
    seconds: float


class Sheet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `fulcrum capacity` shows. Seconds, bytes, tokens; of a worker with several ranks, those of one of them."""

    model: str
    accelerator: str
    tensor: int
    pipeline: int
    data: int
    experts: bool
    gpus: int
    weights: str
    kv: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    weight_bytes_per_gpu: float
    kv_bytes_per_token: float
    kv_bytes_per_token_and_gpu: float
    kv_capacity_tokens: int
    coefficients: SpeedCoefficients
    prefill: tuple[PrefillLine, ...]
    decode: tuple[DecodeLine, ...]
    transfer: tuple[TransferLine, ...]
    isl_tokens: int
    osl_tokens: int
    tpot_seconds: float
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_num_seqs: int
    speed_source: str
    """`roofline` or `profile`."""
    max_batch: int
    """Most requests of this length that decode within the TPOT; 0 when none does."""
    bound_by: str
    """What ends the batch: `tpot`, `kv memory` or `max_num_seqs`."""
    decode_tokens_per_second: float
    decode_requests_per_second: float
    prefill_requests_per_second: float


def sheet(
    shape: EngineShape,
    *,
    isl_tokens: int,
    osl_tokens: int,
    tpot_seconds: float,
    kv_memory_bytes: int | None = None,
    efficiency: Efficiency = GRAPHS,
    profile: Profile | None = None,
) -> Sheet:
    """The roofline of one worker, or what its profile says, laid out.

    Raises:
        EngineShapeError: the weights do not fit the memory.
    """
    speed = shape_speed(shape, kv_memory_bytes=kv_memory_bytes, efficiency=efficiency)
    if profile is not None:
        speed = profiled_speed(profile, transfer=speed.transfer)
    batch, bound_by = largest_batch(speed, isl_tokens=isl_tokens, osl_tokens=osl_tokens, tpot_seconds=tpot_seconds)
    step = speed.decode_step_seconds(batch, batch * (isl_tokens + osl_tokens / 2))
    return Sheet(
        model=shape.model.name,
        accelerator=shape.accelerator.name,
        tensor=shape.tensor,
        pipeline=shape.pipeline,
        data=shape.data,
        experts=shape.experts,
        gpus=shape.gpus,
        weights=shape.weights.value,
        kv=shape.kv.value,
        parameters=shape.model.parameters,
        active_parameters=shape.model.active_parameters,
        weight_bytes=shape.model.weight_bytes(shape.weights),
        weight_bytes_per_gpu=weight_bytes_per_gpu(shape),
        kv_bytes_per_token=kv_bytes_per_token(shape.model, shape.kv),
        kv_bytes_per_token_and_gpu=kv_bytes_per_token_and_gpu(shape),
        kv_capacity_tokens=speed.kv_capacity_tokens,
        coefficients=speed.coefficients,
        prefill=tuple(
            PrefillLine(tokens=tokens, seconds=speed.prefill_seconds(tokens, tokens**2))
            for tokens in sorted({128, 512, 1024, 2048, 4096, 8192, 16384, 32768, isl_tokens})
        ),
        decode=tuple(_decode_line(speed, each) for each in USUAL_BATCHES),
        transfer=tuple(_transfer_lines(shape, isl_tokens)),
        isl_tokens=isl_tokens,
        osl_tokens=osl_tokens,
        tpot_seconds=tpot_seconds,
        max_num_batched_tokens=speed.max_batched_tokens,
        max_num_seqs=speed.max_batch,
        speed_source=speed.source.value,
        max_batch=batch,
        bound_by=bound_by,
        decode_tokens_per_second=batch / step,
        decode_requests_per_second=batch / step / osl_tokens,
        prefill_requests_per_second=1 / speed.prefill_seconds(isl_tokens, isl_tokens**2),
    )


def largest_batch(speed: WorkerSpeed, *, isl_tokens: int, osl_tokens: int, tpot_seconds: float) -> tuple[int, str]:
    """Most requests of one length whose decode step stays within the TPOT and whose KV fits, and what ends it.

    Steps are taken half-way through the outputs, room at their end.
    """
    bounds = {
        "max_num_seqs": speed.max_batch,
        "tpot": int(speed.decode_batch(tpot_seconds, isl_tokens + osl_tokens / 2)),
        "kv memory": speed.kv_capacity_tokens // (isl_tokens + osl_tokens),
    }
    bound_by = min(bounds, key=lambda each: bounds[each])
    return bounds[bound_by], bound_by


def _decode_line(speed: WorkerSpeed, batch: int) -> DecodeLine:
    contexts = (512, 2048, 8192)
    return DecodeLine(
        batch=batch,
        context_tokens=contexts,
        seconds=tuple(
            speed.decode_step_seconds(batch, batch * context) if batch * context <= speed.kv_capacity_tokens else None
            for context in contexts
        ),
    )


def _transfer_lines(shape: EngineShape, tokens: int) -> list[TransferLine]:
    lines = []
    for link in Link:
        try:
            lines.append(TransferLine(link=link.value, seconds=transfer_cost(shape, link).seconds(tokens)))
        except EngineShapeError:
            continue  # no such link on this accelerator
    return lines
