"""One form of decode steps for roofline, profile, measurement and all that compute with them."""

from __future__ import annotations

import statistics
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.decode_curve import (
    curve_problem,
    decode_batch,
    decode_line,
    decode_step_seconds,
    decode_steps,
    fitted_curve,
    scaled,
)
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.online import OnlineSpeed
from fulcrum.capacity.roofline import Roofline
from fulcrum.capacity.rows import DecodeRow

LINE = SpeedCoefficients(prefill_a=0.004, prefill_b=2e-5, prefill_c=1e-9, decode_a=0.007, decode_b=1e-5, decode_c=3e-8)
steps = st.lists(st.floats(1e-4, 0.05), min_size=2, max_size=8)


def curved(*seconds: float, each: float = 2e-8) -> SpeedCoefficients:
    """Steps of batches 1, 2, 4 ... that never fall."""
    points = tuple(
        DecodePoint(batch=2.0**n, seconds=step, seconds_per_token=each) for n, step in enumerate(sorted(seconds))
    )
    return msgspec.structs.replace(LINE, decode_curve=points)


class OlderCoefficients(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the release before reads of `/load`."""

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_a: float
    decode_b: float
    decode_c: float


def test_both_releases_read_each_other() -> None:
    new = curved(0.004, 0.005, 0.008)
    old = msgspec.json.decode(msgspec.json.encode(new), type=OlderCoefficients)
    assert msgspec.structs.astuple(old) == msgspec.structs.astuple(LINE)[:6]
    assert msgspec.json.decode(msgspec.json.encode(old), type=SpeedCoefficients) == LINE


@given(steps, st.floats(0, 300), st.floats(0, 1e6))
def test_a_step_lies_between_those_of_its_neighbours(seconds: list[float], batch: float, context: float) -> None:
    speed = curved(*seconds)
    for one, other in pairwise(speed.decode_curve):
        if one.batch <= batch <= other.batch:
            step = decode_step_seconds(speed, batch, context) - context * one.seconds_per_token
            assert one.seconds * (1 - 1e-6) <= step + 1e-9
            assert step <= other.seconds * (1 + 1e-6) + 1e-9


@given(steps, st.floats(1, 500))
def test_the_largest_batch_is_the_step_the_other_way_round(seconds: list[float], most: float) -> None:
    for speed in (curved(*seconds), LINE):
        batches, line = zip(*decode_steps(speed, 1000.0, most), strict=True)
        assert list(batches) == sorted(batches)
        assert list(line) == sorted(line)
        for batch, step in zip(batches, line, strict=True):
            found = decode_batch(speed, step, 1000.0, most)
            assert found >= batch * (1 - 1e-6)
            longest = decode_step_seconds(speed, found, found * 1000.0)
            assert longest <= max(step, line[0]) * (1 + 1e-6) + 1e-12
        assert decode_batch(speed, line[0] / 2, 1000.0, most) == 0.0


def test_without_a_curve_the_line_is_all() -> None:
    assert decode_line(LINE, 17) == (LINE.decode_a, LINE.decode_b, LINE.decode_c)
    assert decode_batch(LINE, 0.027, 1000.0, 1e9) == pytest.approx((0.027 - 0.007) / (1e-5 + 3e-5))


@given(steps, st.floats(0.2, 5), st.floats(0, 0.01), st.floats(1, 200))
def test_a_factor_and_an_offset_move_the_whole_curve(
    seconds: list[float], factor: float, offset: float, batch: float
) -> None:
    speed = curved(*seconds)
    moved = scaled(speed, factor=factor, offset_seconds=offset)
    expected = offset + factor * decode_step_seconds(speed, batch, 5000.0)
    assert decode_step_seconds(moved, batch, 5000.0) == pytest.approx(expected, rel=1e-9)


def test_learning_moves_the_curve_and_keeps_its_form() -> None:
    truth = curved(0.004, 0.006, 0.010, 0.014)
    online = OnlineSpeed.start(truth)
    rows = [
        DecodeRow(
            batch=batch,
            context_tokens=batch * 900.0,
            seconds_per_step=0.002 + 1.6 * decode_step_seconds(truth, batch, batch * 900.0),
        )
        for _ in range(20)
        for batch in (1.0, 3.0, 8.0)
    ]
    learnt = online.updated(rows).coefficients
    assert [point.batch for point in learnt.decode_curve] == [point.batch for point in truth.decode_curve]
    for row in rows[:3]:
        assert decode_step_seconds(learnt, row.batch, row.context_tokens) == pytest.approx(
            row.seconds_per_step, rel=0.05
        )


def test_measured_steps_give_their_curve_back() -> None:
    truth = curved(0.004, 0.005, 0.009, 0.020)
    rows = [
        (point.batch, point.batch * each, decode_step_seconds(truth, point.batch, point.batch * each))
        for point in truth.decode_curve
        for each in (100, 2000)
    ]
    found = fitted_curve(rows, (0.004, 0.001, 2e-8))
    for one, other in zip(found, truth.decode_curve, strict=True):
        assert (one.batch, one.seconds) == (other.batch, pytest.approx(other.seconds, rel=1e-6))
        assert one.seconds_per_token == pytest.approx(other.seconds_per_token, rel=1e-3)
    assert fitted_curve(rows[:2], (0.004, 0.001, 2e-8)) == ()


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([(1, 0.01, 0)], "one point"),
        ([(2, 0.01, 0), (1, 0.02, 0)], "ascending"),
        ([(1, 0.01, 0), (2, float("nan"), 0)], "above 0"),
        ([(1, 0.01, -1e-9), (2, 0.02, 0)], "at least 0"),
        ([(1, 0.01, 0), (2, 1e308, 0)], "up to 3600"),
        ([(1, 0.01, 0), (2, 0.02, 1e308)], "at most 3600"),
        ([(batch, 0.01, 0) for batch in range(1, 300)], "128 are the most"),
    ],
)
def test_curves_that_cannot_be(points: list[tuple[float, float, float]], problem: str) -> None:
    curve = [DecodePoint(batch=batch, seconds=seconds, seconds_per_token=each) for batch, seconds, each in points]
    assert problem in (curve_problem(curve) or "")
    assert curve_problem(curved(0.01, 0.02).decode_curve) is None


MIXTURES = ("openai/gpt-oss-120b", "Qwen/Qwen3-235B-A22B-FP8", "deepseek-ai/DeepSeek-V3", "MiniMaxAI/MiniMax-M2.5")


def roofline(name: str, gpu: str, tensor: int, max_batch: int = 256) -> Roofline:
    model = known_model(name)
    return Roofline(
        shape=EngineShape(
            model=model, accelerator=accelerator(gpu), tensor=tensor, weights=model.weights, max_batch=max_batch
        )
    )


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("gpu", ["H100", "H200", "B200"])
def test_the_curve_is_the_roofline_of_a_mixture_of_experts(name: str, gpu: str) -> None:
    line = roofline(name, gpu, 8)
    speed = line.coefficients()
    errors: dict[bool, list[float]] = {True: [], False: []}
    for batch in (1, 3, 6, 12, 24, 48, 64, 96, 200, 256):
        for each in (300, 1000, 3000):
            true = line.decode_step_seconds(batch, batch * each)
            for curve in (True, False):
                form = speed if curve else msgspec.structs.replace(speed, decode_curve=())
                errors[curve].append(abs(decode_step_seconds(form, batch, batch * each) / true - 1))
    assert statistics.median(errors[True]) <= 0.03
    assert statistics.median(errors[False]) > 2 * statistics.median(errors[True])


def test_the_speed_of_a_batch_does_not_depend_on_the_largest_one() -> None:
    speeds = [roofline("openai/gpt-oss-120b", "H200", 1, most) for most in (64, 256, 1024)]
    found = {decode_step_seconds(each.coefficients(), 64, 64 * 1024) for each in speeds}
    assert len(found) == 1
    assert found.pop() == pytest.approx(speeds[0].decode_step_seconds(64, 64 * 1024), rel=0.03)
