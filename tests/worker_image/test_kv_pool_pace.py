"""When the pool is asked, and when a load from it is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum_worker.kv.pool.pace import PoolPace, Wanted

SPEED = SpeedCoefficients.of(prefill=(0.0, 1e-3, 0.0), decode=(0.0, 0.0, 0.0))
"""1,000 tokens a second."""
HOST = TransferCost(base_seconds=0.0, seconds_per_token=1e-6)
WANTED = Wanted(present=0, matched=1000, prompt=1100)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def pace(*, tokens_per_second: float | None = None, speed: SpeedCoefficients | None = SPEED) -> tuple[PoolPace, Clock]:
    clock = Clock()
    made = PoolPace(bytes_per_token=1000.0, speed=lambda: speed, clock=clock)
    for _ in range(40 if tokens_per_second is not None else 0):
        made.learn(tokens=1000, seconds=1000 / (tokens_per_second or 1.0))
    return made, clock


@pytest.mark.parametrize(("tokens_per_second", "loads"), [(None, True), (100_000, True), (1_500, True), (500, False)])
def test_what_is_quicker_than_computing_is_loaded(tokens_per_second: float | None, loads: bool) -> None:
    made, _ = pace(tokens_per_second=tokens_per_second)
    made.is_worth(WANTED, after=HOST)  # the first time anything is tried
    assert made.is_worth(WANTED, after=HOST) is loads


def test_a_pool_that_was_slow_is_tried_again() -> None:
    made, clock = pace(tokens_per_second=500)
    assert made.is_worth(WANTED, after=HOST)
    assert not made.is_worth(WANTED, after=HOST)
    clock.now += 61
    assert made.is_worth(WANTED, after=HOST)
    assert not made.is_worth(WANTED, after=HOST)


def test_without_a_known_speed_nothing_is_loaded_as_nothing_would_say_when_it_is_late() -> None:
    made, _ = pace(tokens_per_second=100_000, speed=None)
    assert not made.is_worth(WANTED, after=HOST)
    assert made.is_late(WANTED, moved_share=0.9, seconds=0.0)


@given(quick=st.floats(200, 1e6), slow=st.floats(1, 200), turns=st.floats(0, 1), matched=st.integers(64, 100_000))
def test_a_load_that_turns_slow_costs_little_more_than_computing(
    quick: float, slow: float, turns: float, matched: int
) -> None:
    """A link that gives `quick` tokens a second, and `slow` after a share of them."""
    made, _ = pace()
    wanted = Wanted(present=0, matched=matched, prompt=matched + 1)
    computing = matched * SPEED.prefill_b
    steps = 2_000
    ends = matched * (turns / quick + (1 - turns) / slow)
    seconds, share = 0.0, 0.0
    while share < 1.0 and not made.is_late(wanted, moved_share=share, seconds=seconds):
        seconds += min(ends, 2 * computing) / steps
        moved = min(seconds * quick, turns * matched)
        share = (moved + max(seconds - turns * matched / quick, 0.0) * slow) / matched
    total = seconds + (1 - min(share, 1.0)) * computing
    assert total <= 1.12 * computing + 0.05
