"""How sure it is that one play is ahead of another one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.rehearsal.difference import difference, over_draws

TIMES = np.linspace(0.0, 199.9, 600)
NONE = np.zeros(600, dtype=np.bool_)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 200), share=st.floats(0, 1))
def test_the_difference_is_that_of_the_counts_and_turns_its_sign(seed: int, count: int, share: float) -> None:
    random = np.random.default_rng(seed)
    one, other = random.random(count) < share, random.random(count) < 0.5
    times = random.uniform(50.0, 300.0, count)
    ahead, error = difference(one, other, times)
    assert ahead == pytest.approx(int(one.sum()) - int(other.sum()))
    assert difference(other, one, times) == pytest.approx((-ahead, error))
    assert error >= 0.0


def test_two_plays_that_came_to_the_same_differ_by_nothing_for_certain() -> None:
    one = TIMES % 7 < 3
    assert difference(one, one.copy(), TIMES) == (0.0, 0.0)


def test_the_error_is_that_of_a_sum_over_blocks() -> None:
    """Twenty blocks of 10 s, of which each is ahead by one or by three: a standard deviation of 1."""
    block = (TIMES // 10).astype(np.int64)
    place = np.arange(600) - np.searchsorted(TIMES // 10, block)
    one = place < np.where(block % 2 == 0, 1, 3)
    ahead, error = difference(one, NONE, TIMES)
    assert ahead == 40.0
    assert error == pytest.approx(np.sqrt(20 * 20 / 19))


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_add_no_certainty(copies: int) -> None:
    random = np.random.default_rng(11)
    one, other = random.random(600) < 0.6, random.random(600) < 0.5
    ahead, error = difference(one, other, TIMES)
    many = difference(np.tile(one, copies), np.tile(other, copies), np.tile(TIMES, copies))
    assert many == pytest.approx((copies * ahead, copies * error))


def test_the_error_grows_with_bursts() -> None:
    """A hundred requests are won: one by one, in tens, in thirties."""
    errors = []
    for burst in (1, 10, 30):
        ahead, error = difference(np.arange(600) % (6 * burst) < burst, NONE, TIMES)
        assert ahead == pytest.approx(100, abs=20)
        errors.append(error)
    assert errors[0] < errors[1] / 3
    assert errors[1] < errors[2] / 1.5


def test_the_error_covers_the_truth_about_as_often_as_it_says() -> None:
    """Bursts that one of two plays wins by chance: twice the error leaves out about one case of twenty."""
    random = np.random.default_rng(5)
    outside = 0
    for _ in range(300):
        luck = np.repeat(random.random(50) < 0.5, 12)  # bursts of 4 s
        ahead, error = difference(luck, ~luck, TIMES)
        outside += abs(ahead) > 2 * error
    assert 0.01 < outside / 300 < 0.12


def test_requests_of_one_moment_say_nothing_for_certain() -> None:
    assert difference(np.ones(9, dtype=np.bool_), np.zeros(9, dtype=np.bool_), np.full(9, 33.0))[1] == np.inf


def test_a_short_time_is_still_several_blocks() -> None:
    """All of 8 s would be one block of 10 s, and its error infinite."""
    times = np.linspace(0.0, 8.0, 160)
    one = np.arange(160) % 2 == 0
    ahead, error = difference(one, np.zeros(160, dtype=np.bool_), times)
    assert ahead == 80.0
    assert error < 10.0


def test_draws_of_the_same_arrivals_add_no_certainty() -> None:
    """Two layouts are equally good, and each block of the arrivals suits one of them: luck that both draws share."""
    random = np.random.default_rng(3)
    block, sure = (TIMES // 10).astype(np.int64), 0
    for _ in range(300):
        suits = random.uniform(-0.4, 0.4, block[-1] + 1)[block]
        draws = [
            difference(random.random(600) < 0.5 + suits, random.random(600) < 0.5 - suits, TIMES) for _ in range(2)
        ]
        gain, error = over_draws(draws)
        assert gain == pytest.approx((draws[0][0] + draws[1][0]) / 2)
        sure += abs(gain) > 2 * error
    assert sure <= 0.08 * 300, "beyond two errors lie 5 % by chance, and a little more as errors are estimated"
