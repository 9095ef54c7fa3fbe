"""A front that is computed while the rest is loaded: where it is split, and split again when the link changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum_worker.kv.front import Front
from fulcrum_worker.kv.speed import StepSpeed

BLOCK = 32
SPEED = SpeedCoefficients.of(prefill=(0.02, 0.001, 5e-7), decode=(0.0, 0.0, 0.0))


def front(*, split: int = 960, loaded_from: int = 2016, changed: float = 0.0) -> Front:
    return Front(
        present=0,
        matched=2016,
        prompt=2048,
        block=BLOCK,
        split=split,
        loaded_from=loaded_from,
        changed=changed,
    )


def link(seconds_per_token: float) -> TransferCost:
    return TransferCost(base_seconds=0.0, seconds_per_token=seconds_per_token)


def test_blocks_count_from_the_end() -> None:
    half = front()
    half.loaded(3, now=1.0)
    assert half.loaded_from == 2016 - 3 * BLOCK
    assert half.changed == 1.0
    half.loaded(3, now=2.0)
    assert half.changed == 1.0, "nothing came"
    assert half.kept_blocks == (2016 - 960) // BLOCK


def test_a_little_that_a_quick_link_brings_is_waited_for() -> None:
    nearly = front(loaded_from=960 + 2 * BLOCK, changed=10.0)
    assert nearly.split_again(speed=SPEED, link=link(1e-5), now=10.0) == 960


def test_much_that_a_slow_link_brings_is_split_again() -> None:
    slow = front(loaded_from=1920, changed=10.0)
    split = slow.split_again(speed=SPEED, link=link(0.002), now=10.0)
    assert 960 < split < 1920
    assert split % BLOCK == 0


def test_all_is_computed_when_the_link_stands_still() -> None:
    stuck = front(loaded_from=1920, changed=10.0)
    assert stuck.split_again(speed=SPEED, link=link(1e-5), now=1010.0) >= 1920 - BLOCK


@given(
    split=st.integers(0, 62),
    loaded=st.integers(0, 63),
    rate=st.floats(0, 1, allow_nan=False),
    waited=st.floats(0, 100, allow_nan=False),
)
def test_a_split_never_goes_back_nor_beyond_what_is_there(split: int, loaded: int, rate: float, waited: float) -> None:
    any_front = front(split=split * BLOCK, loaded_from=2016 - loaded * BLOCK)
    before = any_front.split
    after = any_front.split_again(speed=SPEED, link=link(rate), now=waited)
    assert after == any_front.split
    assert after >= before
    assert after <= max(before, any_front.loaded_from)
    assert after % BLOCK == 0


def test_speed_is_unknown_before_two_lengths() -> None:
    speed = StepSpeed()
    assert speed.coefficients() is None
    for _ in range(3):
        speed.learn(start=0, end=1000, seconds=1.0)
    assert speed.coefficients() is None
    speed.learn(start=0, end=20, seconds=0.1)
    speed.learn(start=1000, end=1001, seconds=0.1)
    assert speed.coefficients() is None, "steps this short say nothing of prompts"


def test_speed_is_found_from_chunks() -> None:
    speed = StepSpeed()
    for start, end in ((0, 500), (500, 1500), (0, 2000), (1500, 1800), (0, 120)):
        seconds = 0.02 + 0.001 * (end - start) + 5e-7 * (end**2 - start**2)
        speed.learn(start=start, end=end, seconds=seconds)
    fitted = speed.coefficients()
    assert fitted is not None
    assert (fitted.prefill_a, fitted.prefill_b, fitted.prefill_c) == pytest.approx((0.02, 0.001, 5e-7), rel=0.02)


def test_single_tokens_tell_what_a_step_takes_by_itself() -> None:
    speed = StepSpeed()
    for end, noise in ((1500, 1.15), (1600, 0.9), (2000, 1.0)):
        speed.learn(start=0, end=end, seconds=noise * (0.02 + 0.001 * end))
    for _ in range(5):
        speed.learn(start=2000, end=2001, seconds=0.021)
    fitted = speed.coefficients()
    assert fitted is not None
    assert fitted.prefill_a < 0.03
