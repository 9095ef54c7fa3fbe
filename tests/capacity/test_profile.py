"""Profiles: documents of ours, and DistServe's fits with their published numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.config_fields import MOST_BYTES
from fulcrum.capacity.profile import (
    ProfileError,
    distserve_speed,
    parse_profile,
    profile_document,
    profile_speed,
    profiled_speed,
    same_worker,
)
from fulcrum.capacity.speed import Speed, SpeedSource, WorkerSpeed

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
COEFFICIENTS = SpeedCoefficients(
    prefill_a=0.004, prefill_b=2e-5, prefill_c=1e-9, decode_a=0.007, decode_b=1e-5, decode_c=3e-8
)
FITTED: dict[str, Any] = {
    "model": "m",
    "accelerator": "H100-SXM-80GB",
    "kvCapacityTokens": 440_000,
    "coefficients": {
        "prefillA": 0.004,
        "prefillB": 2e-5,
        "prefillC": 1e-9,
        "decodeA": 0.007,
        "decodeB": 1e-5,
        "decodeC": 3e-8,
    },
}
# Made-up numbers of round size, in the form of DistServe's repository.
DISTSERVE: dict[str, Any] = {
    "facebook/opt-13b": {
        "2": {
            "decoding_large_small_bs_threshold": 95,
            "prefill": [18.0, 0.1, 7e-6],
            "decoding_smallbs": [20.0, 0.0006, 0.04],
            "decoding_largebs": [7.0, 0.0005, 0.16],
        }
    }
}


def document(**change: Any) -> str:
    return json.dumps({name: each for name, each in (FITTED | change).items() if each is not None})


def samples() -> dict[str, Any]:
    k = COEFFICIENTS
    return {
        "prefill": [
            {
                "prompts": 1,
                "tokens": length,
                "squaredTokens": length**2,
                "seconds": k.prefill_a + k.prefill_b * length + k.prefill_c * length**2,
            }
            for length in (128, 1024, 4096, 16384)
        ],
        "decode": [
            {
                "batch": batch,
                "contextTokens": batch * context,
                "secondsPerStep": k.decode_a + k.decode_b * batch + k.decode_c * batch * context,
            }
            for batch in (1, 8, 64)
            for context in (128, 4096)
        ],
    }


CURVE = [{"batch": batch, "seconds": 0.01, "secondsPerToken": 0} for batch in (1, 2)]


def many_batches(count: int) -> list[dict[str, Any]]:
    return [{"batch": batch, "contextTokens": 1, "secondsPerStep": 0.01} for batch in range(1, count + 1)]


def huge_contexts() -> list[dict[str, Any]]:
    return [{"batch": batch, "contextTokens": 1e300, "secondsPerStep": 0.01} for batch in (1, 2)]


def test_coefficients_are_taken_as_they_are() -> None:
    speed = profile_speed(parse_profile(document(maxBatch=64, transferBaseSeconds=0.001)))
    assert speed.coefficients == COEFFICIENTS
    assert (speed.kv_capacity_tokens, speed.max_batch, speed.source) == (440_000, 64, SpeedSource.PROFILE)
    assert speed.transfer_seconds(1000) == 0.001


def test_measurements_are_fitted() -> None:
    speed = profile_speed(parse_profile(document(coefficients=None, **samples())))
    assert speed.prefill_seconds(2048, 2048**2) == pytest.approx(0.004 + 2e-5 * 2048 + 1e-9 * 2048**2, rel=1e-6)
    assert speed.decode_step_seconds(16, 16_000) == pytest.approx(0.007 + 1e-5 * 16 + 3e-8 * 16_000, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        (b"\xff", "not JSON"),
        ("[]", "schema"),
        (document(kvCapacityTokens="many"), r"kvCapacityTokens"),
        (document(kvCapacityTokens=0), "at least 1"),
        (document(kvCapacityTokens=10**30), "kvCapacityTokens must be at least 1 and at most"),
        (document(maxBatch=10**9), "maxBatch must be at least 1 and at most"),
        (document(transferBaseSeconds=1e300), "nor above 3600 s"),
        (document(coefficients=dict.fromkeys(FITTED["coefficients"], 0)), "longer than 1 us"),
        (document(coefficients=dict.fromkeys(FITTED["coefficients"], 1e308)), "nor above 3600 s"),
        (document(coefficients=FITTED["coefficients"] | {"decodeCurve": [CURVE[0]]}), "a line needs two"),
        (document(coefficients=FITTED["coefficients"] | {"decodeCurve": CURVE * 100}), "128 are the most"),
        (document(model="m" * MOST_BYTES), f"{MOST_BYTES} are the most"),
        ("[" * 50_000, "schema"),
        (document(coefficients=None, prefill=samples()["prefill"], decode=many_batches(200)), "more than 128"),
        (document(coefficients=None, prefill=samples()["prefill"], decode=huge_contexts()), "up to 1e"),
        (document(typo=1), "typo"),
        (document(transferSecondsPerToken=-1), "must not be negative"),
        (document(coefficients=FITTED["coefficients"] | {"decodeA": -1}), "must not be negative"),
        (document(coefficients=None), "two prompt lengths"),
        (document(coefficients=None, prefill=samples()["prefill"]), "two batch sizes"),
        (
            document(
                coefficients=None,
                prefill=samples()["prefill"],
                decode=[
                    {"batch": 1, "contextTokens": 1, "secondsPerStep": 0},
                    {"batch": 2, "contextTokens": 1, "secondsPerStep": 1},
                ],
            ),
            "positive",
        ),
    ],
)
def test_a_bad_profile_says_what_is_wrong(text: str | bytes, what: str) -> None:
    with pytest.raises(ProfileError, match=what):
        parse_profile(text)


@given(
    decode=st.lists(
        st.fixed_dictionaries(
            {
                "batch": st.floats(1e-3, 1e6),
                "contextTokens": st.floats(0, 1e18),
                "secondsPerStep": st.floats(1e-9, 1e6),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60)
def test_any_rows_give_finite_speeds_or_a_reason(decode: list[dict[str, float]]) -> None:
    """The operator fits what others write: no overflow, and no division by zero."""
    try:
        speed = profile_speed(parse_profile(document(coefficients=None, prefill=samples()["prefill"], decode=decode)))
    except ProfileError:
        return
    assert all(math.isfinite(speed.decode_step_seconds(batch, 1000 * batch)) for batch in (0, 1, 16, 4096))
    assert 0 <= speed.decode_batch(0.05, 1000) <= speed.max_batch


@pytest.mark.parametrize("curve", [(), (1, 8, 64)])
def test_a_document_is_read_as_the_speed_that_it_was_made_of(curve: tuple[int, ...]) -> None:
    points = tuple(DecodePoint(batch=each, seconds=0.01 + each * 1e-5, seconds_per_token=3e-8) for each in curve)
    measured = WorkerSpeed(
        coefficients=msgspec.structs.replace(COEFFICIENTS, decode_curve=points),
        kv_capacity_tokens=123_456,
        max_batch=77,
        max_batched_tokens=4096,
    )
    written = json.dumps(profile_document(measured, model="m", accelerator_name="H200", tensor=2, pipeline=1, data=1))
    read = parse_profile(written)
    assert profile_speed(read) == replace(measured, source=SpeedSource.PROFILE)
    roofline = replace(measured, transfer_base_seconds=0.002, source=SpeedSource.ROOFLINE)
    assert profiled_speed(read, transfer=roofline.transfer) == replace(roofline, source=SpeedSource.PROFILE)


@pytest.mark.parametrize(
    ("accelerator", "tensor", "pipeline", "same"),
    [
        ("NVIDIA-H100-80GB-HBM3", 1, 1, True),
        ("H200", 1, 1, False),
        ("H100", 2, 1, False),
        ("H100", 1, 2, False),
        ("our-own-chip", 1, 1, False),
    ],
)
def test_a_profile_is_of_one_kind_of_worker(accelerator: str, tensor: int, pipeline: int, same: bool) -> None:
    profile = parse_profile(document())
    assert same_worker(profile, accelerator_name=accelerator, tensor=tensor, pipeline=pipeline, data=1) is same
    own = parse_profile(document(accelerator="our-own-chip"))
    assert same_worker(own, accelerator_name="our-own-chip", tensor=1, pipeline=1, data=1)


def test_distserve_prefill_and_decode() -> None:
    speed: Speed = distserve_speed(DISTSERVE, "facebook/opt-13b", tensor=2, kv_capacity_tokens=163_008)
    lengths = (100, 300)
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    assert speed.prefill_seconds(tokens, squares) == pytest.approx((18 + 0.1 * 400 + 7e-6 * 100_000 + 1) / 1e3)
    assert speed.decode_step_seconds(94, 20_000) == pytest.approx((20 + 0.0006 * 20_000 + 0.04 * 94) / 1e3)
    assert speed.decode_step_seconds(95, 20_000) == pytest.approx((7 + 0.0005 * 20_000 + 0.16 * 95) / 1e3)
    assert speed.kv_capacity_tokens == 163_008


@pytest.mark.parametrize("batch", [10, 200])
def test_the_time_of_the_host_comes_on_top_of_each_decode_step(batch: int) -> None:
    passes, served = (
        distserve_speed(
            DISTSERVE,
            "facebook/opt-13b",
            tensor=2,
            pipeline=2,
            kv_capacity_tokens=1,
            host_step_seconds=step,
            host_request_seconds=request,
        )
        for step, request in ((0.0, 0.0), (0.002, 0.0003))
    )
    added = served.decode_step_seconds(batch, 10_000) - passes.decode_step_seconds(batch, 10_000)
    assert added == pytest.approx(0.002 + 0.0003 * batch)
    assert served.prefill_seconds(512, 512**2) == passes.prefill_seconds(512, 512**2)


def test_distserve_pipeline_divides_and_adds_a_millisecond_per_stage() -> None:
    one, three = (
        distserve_speed(DISTSERVE, "facebook/opt-13b", tensor=2, pipeline=stages, kv_capacity_tokens=1)
        for stages in (1, 3)
    )
    assert three.prefill_seconds(512, 512**2) - 0.003 == pytest.approx((one.prefill_seconds(512, 512**2) - 0.001) / 3)
    without = distserve_speed(
        DISTSERVE, "facebook/opt-13b", tensor=2, pipeline=3, kv_capacity_tokens=1, stage_seconds=0.0
    )
    assert three.prefill_seconds(512, 512**2) - without.prefill_seconds(512, 512**2) == pytest.approx(0.003)
    for batch in (10, 200):
        assert three.decode_step_seconds(batch, 10_000) == pytest.approx(one.decode_step_seconds(batch, 10_000) / 3)


@pytest.mark.parametrize(("model", "tensor"), [("facebook/opt-13b", 4), ("facebook/opt-66b", 2)])
def test_a_fit_that_is_not_there(model: str, tensor: int) -> None:
    with pytest.raises(ProfileError, match=f"{model} at tensor parallelism {tensor}"):
        distserve_speed(DISTSERVE, model, tensor=tensor, kv_capacity_tokens=1)


@pytest.mark.parametrize("name", ["distserve_profile_a100.json", "distserve_profile_a100_vllm.json"])
def test_published_fits_are_read(name: str) -> None:
    path = REFERENCE / name
    if not path.is_file():
        pytest.skip("no reference data")
    published = json.loads(path.read_text())
    for model, by_tensor in published.items():
        for tensor, fit in by_tensor.items():
            speed = distserve_speed(published, model, tensor=int(tensor), kv_capacity_tokens=10_000)
            a, b, c = fit["prefill"]
            assert speed.prefill_seconds(512, 512**2) * 1e3 == pytest.approx(a + b * 512 + c * 512**2 + 1)
            a, b, c = fit["decoding_smallbs"]
            assert speed.decode_step_seconds(32, 9600) * 1e3 == pytest.approx(a + b * 9600 + c * 32)
