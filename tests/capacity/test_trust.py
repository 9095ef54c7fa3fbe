"""Which source of a pool's speed is believed."""

from __future__ import annotations

import dataclasses

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.capacity.trust import NO_KV_TOKENS, measured_speed, pool_speed

COEFFICIENTS = SpeedCoefficients(
    prefill_a=0.005, prefill_b=2e-5, prefill_c=1e-9, decode_a=0.008, decode_b=3e-5, decode_c=4e-8
)
PROFILE = WorkerSpeed(coefficients=COEFFICIENTS, kv_capacity_tokens=50_000, source=SpeedSource.PROFILE)
ROOFLINE = WorkerSpeed(
    coefficients=COEFFICIENTS,
    kv_capacity_tokens=60_000,
    transfer_base_seconds=0.002,
    transfer_seconds_per_token=1e-6,
    source=SpeedSource.ROOFLINE,
)


def worker(prefill: float = 1.0, decode: float = 1.0, room: int = 40_000, batch: int = 256) -> WorkerSpeed:
    k = COEFFICIENTS
    return WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=k.prefill_a * prefill,
            prefill_b=k.prefill_b * prefill,
            prefill_c=k.prefill_c * prefill,
            decode_a=k.decode_a * decode,
            decode_b=k.decode_b * decode,
            decode_c=k.decode_c * decode,
        ),
        kv_capacity_tokens=room,
        max_batch=batch,
    )


REPORT = LoadReport(
    role=Role.MIXED,
    role_epoch=0,
    ready=True,
    draining=False,
    kv_capacity_tokens=1234,
    speed=COEFFICIENTS,
    max_batch=64,
    max_batched_tokens=2048,
)


def test_nothing_known_is_none() -> None:
    assert pool_speed([]) is None


def test_measured_before_profile_before_roofline() -> None:
    assert pool_speed([], prior=ROOFLINE) is ROOFLINE
    assert pool_speed([], prior=PROFILE) is PROFILE
    assert pool_speed([worker()], prior=PROFILE) == worker()


def test_one_disturbed_worker_of_three_moves_nothing() -> None:
    assert pool_speed([worker(), worker(), worker(prefill=30.0, decode=0.01, room=7)]) == worker()


def test_prefill_and_decode_are_judged_apart() -> None:
    speed = pool_speed(
        [worker(prefill=1.0, decode=3.0), worker(prefill=2.0, decode=2.0), worker(prefill=3.0, decode=1.0)]
    )
    assert speed is not None
    assert speed.coefficients == worker(prefill=2.0, decode=2.0).coefficients


def test_of_two_workers_the_slower_and_smaller_counts() -> None:
    speed = pool_speed([worker(decode=1.0, room=40_000, batch=256), worker(decode=2.0, room=30_000, batch=128)])
    assert speed == worker(decode=2.0, room=30_000, batch=128)


def test_a_report_becomes_a_speed() -> None:
    speed = measured_speed(REPORT, prior=ROOFLINE)
    assert speed is not None
    assert speed.source is SpeedSource.MEASURED
    assert (speed.kv_capacity_tokens, speed.max_batch, speed.max_batched_tokens) == (1234, 64, 2048)
    assert speed.transfer_seconds(1000) == ROOFLINE.transfer_seconds(1000)


def test_a_report_without_its_limits_takes_the_prior_s() -> None:
    bare = msgspec.structs.replace(REPORT, kv_capacity_tokens=None, max_batch=None, max_batched_tokens=None)
    assert measured_speed(bare) is None, "the size of the cache is unknown"
    assert measured_speed(bare, prior=ROOFLINE) == dataclasses.replace(
        ROOFLINE, coefficients=COEFFICIENTS, source=SpeedSource.MEASURED
    )


def test_an_engine_that_was_not_measured_is_unknown() -> None:
    assert measured_speed(msgspec.structs.replace(REPORT, speed=None), prior=ROOFLINE) is None


def test_memory_limits_no_engine_whose_requests_keep_no_kv() -> None:
    for told in (None, 16):
        report = msgspec.structs.replace(REPORT, keeps_kv=False, kv_capacity_tokens=told)
        speed = measured_speed(report, prior=ROOFLINE)
        assert speed is not None
        assert speed.kv_capacity_tokens == NO_KV_TOKENS
