"""Which speed to believe: measured before profile before roofline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.decode_curve import curve_problem
from fulcrum.capacity.kv import UNKNOWN_TRANSFER, TransferCost
from fulcrum.capacity.rows import ranks_of
from fulcrum.capacity.speed import TYPICAL_BATCH, TYPICAL_TOKENS, SpeedSource, WorkerSpeed

NO_KV_TOKENS: Final = 2**40
"""KV tokens that fit into an engine whose requests keep none: no number of them fills it."""


def measured_speed(
    report: LoadReport, *, prior: WorkerSpeed | None = None, transfer: TransferCost = UNKNOWN_TRANSFER
) -> WorkerSpeed | None:
    """What a worker's agent reports; None until it has measured its engine, or while the size of its cache is unknown.

    `prior` (profile or roofline) gives what an agent cannot know: the cost of transfers; without one it is `transfer`.
    Of a worker with several ranks the speed is that of one of them.
    """
    if report.speed is None:
        return None
    ranks = ranks_of(report)
    room = (report.kv_capacity_tokens or 0) // ranks or (prior.kv_capacity_tokens if prior else None)
    if not report.keeps_kv:
        room = NO_KV_TOKENS
    if room is None:
        return None
    measured = report.speed
    if curve_problem(measured.decode_curve) is not None:
        measured = msgspec.structs.replace(measured, decode_curve=())  # the line is left
    base = prior or WorkerSpeed(coefficients=measured, kv_capacity_tokens=room).with_transfer(transfer)
    return dataclasses.replace(
        base,
        coefficients=measured,
        kv_capacity_tokens=room,
        ranks=ranks,
        max_batch=report.max_batch or base.max_batch,
        max_batched_tokens=report.max_batched_tokens or base.max_batched_tokens,
        source=SpeedSource.MEASURED,
    )


def pool_speed(measured: Sequence[WorkerSpeed], *, prior: WorkerSpeed | None = None) -> WorkerSpeed | None:
    """The speed of a pool's workers, measured or else the prior (profile or roofline); None when there is none.

    Of several measured workers the middle one counts, for prefill and for decode apart (the slower of two in the
    middle), so that one disturbed measurement moves nothing and coefficients that belong together stay together.
    """
    if not measured:
        return prior
    prefill = _middle(measured, lambda each: typical_seconds(each)[0])
    decode = _middle(measured, lambda each: typical_seconds(each)[1])
    room = _middle(measured, lambda each: -each.kv_capacity_tokens)
    return dataclasses.replace(
        prefill,
        coefficients=_joined(prefill, decode),
        kv_capacity_tokens=room.kv_capacity_tokens,
        max_batch=_middle(measured, lambda each: -each.max_batch).max_batch,
        max_batched_tokens=_middle(measured, lambda each: -each.max_batched_tokens).max_batched_tokens,
        source=SpeedSource.MEASURED,
    )


def typical_seconds(speed: WorkerSpeed) -> tuple[float, float]:
    """What a typical prompt takes, and a typical decode step."""
    return (
        speed.prefill_seconds(TYPICAL_TOKENS, TYPICAL_TOKENS**2),
        speed.decode_step_seconds(TYPICAL_BATCH, TYPICAL_BATCH * TYPICAL_TOKENS),
    )


def _middle(workers: Sequence[WorkerSpeed], cost: Callable[[WorkerSpeed], float]) -> WorkerSpeed:
    return sorted(workers, key=cost)[len(workers) // 2]


def _joined(prefill: WorkerSpeed, decode: WorkerSpeed) -> SpeedCoefficients:
    first, second = prefill.coefficients, decode.coefficients
    return msgspec.structs.replace(
        second, prefill_a=first.prefill_a, prefill_b=first.prefill_b, prefill_c=first.prefill_c
    )
