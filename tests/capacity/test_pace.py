"""Which worker of a pool is slower than the others, told from noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.pace import SLOW, WELL, Pace, measured_times, slower_than_peers
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import WorkerSpeed

SPEED = SpeedCoefficients(
    prefill_a=0.01, prefill_b=1e-4, prefill_c=1e-9, decode_a=0.008, decode_b=1e-4, decode_c=1e-8
)  # fmt: skip


def prefill(times: float, tokens: float = 4000.0) -> PrefillRow:
    seconds = 4 * SPEED.prefill_a + SPEED.prefill_b * tokens + SPEED.prefill_c * tokens**2
    return PrefillRow(prompts=4, tokens=tokens, squared_tokens=tokens**2, seconds=times * seconds)


def decode(times: float, batch: float = 20.0) -> DecodeRow:
    seconds = SPEED.decode_a + SPEED.decode_b * batch + SPEED.decode_c * 1000 * batch
    return DecodeRow(batch=batch, context_tokens=1000 * batch, seconds_per_step=times * seconds)


@pytest.mark.parametrize(
    ("times", "before", "found"),
    [
        ({"a": 1.0, "b": 1.0, "c": 1.5}, (), {"c": 1.5}),
        ({"a": 0.7, "b": 0.7, "c": 1.4}, (), {"c": 2.0}),  # however the pool's speed is off
        ({"a": 1.0, "b": 1.0, "c": 1.25}, (), {}),
        ({"a": 1.0, "b": 1.0, "c": 1.25}, ("c",), {"c": 1.25}),  # not yet well
        ({"a": 1.0, "b": 1.0, "c": 1.1}, ("c",), {}),
        ({"a": 1.0, "b": 5.0}, (), {}),  # of two none is the odd one
        ({"a": 5.0}, ("a",), {}),
        ({}, ("a",), {}),
        ({"a": 1.0, "b": 2.0, "c": 2.0, "d": 2.0}, (), {}),  # one fast worker makes no slow ones
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.6, "f": 2.0}, (), {"e": 1.6, "f": 2.0}),
    ],
)
def test_who_is_slower(times: dict[str, float], before: tuple[str, ...], found: dict[str, float]) -> None:
    assert slower_than_peers(times, before) == pytest.approx(found)


def test_work_tells_a_pace_whatever_it_is() -> None:
    pace = Pace()
    for _ in range(12):
        pace = pace.after(prefill(1.5), SPEED).after(decode(1.5), SPEED)
    assert pace.known
    assert pace.times == pytest.approx(1.5)


def test_a_busy_moment_is_no_slow_gpu_and_a_throttled_one_is_seen_within_minutes() -> None:
    pace = Pace()
    for _ in range(30):
        pace = pace.after(decode(1.0), SPEED)
    assert pace.after(decode(50.0), SPEED).times < SLOW
    rows = 0
    while pace.times < SLOW:
        pace, rows = pace.after(decode(1.6), SPEED), rows + 1
    assert 3 <= rows <= 18, "half a minute to three minutes of rows of 10 s"


def test_noise_of_usual_rows_names_none_and_does_not_flap() -> None:
    """Ten workers of one kind for ten hours of work each, one of them in the middle between the bounds."""
    random = np.random.default_rng(7)
    names = [f"w{number}" for number in range(10)]
    paces = dict.fromkeys(names, Pace())
    changes, slow = 0, frozenset[str]()
    for _ in range(3600):
        for name in names:
            own = (SLOW + WELL) / 2 if name == "w0" else 1.0
            paces[name] = paces[name].after(decode(own * float(random.lognormal(0.0, 0.1))), SPEED)
        known = {name: pace.times for name, pace in paces.items() if pace.known}
        now = frozenset(slower_than_peers(known, slow))
        changes, slow = changes + (now != slow), now
        assert slow <= {"w0"}
    assert changes <= 2, "it may be named once, and stays so"


def test_what_was_measured_at_the_start_is_a_pace_too() -> None:
    def speed(coefficients: SpeedCoefficients) -> WorkerSpeed:
        return WorkerSpeed(coefficients=coefficients, kv_capacity_tokens=1000)

    usual = speed(SPEED)
    slow = speed(SpeedCoefficients.of(prefill=(0.02, 2e-4, 2e-9), decode=(0.016, 2e-4, 2e-8)))
    assert measured_times(slow, usual) == pytest.approx(2.0)
    assert measured_times(usual, usual) == pytest.approx(1.0)
    nothing = speed(SpeedCoefficients.of(prefill=(0.0, 0.0, 0.0), decode=(0.0, 0.0, 0.0)))
    assert measured_times(nothing, usual) is None
    assert measured_times(usual, nothing) is None


@given(
    st.dictionaries(st.text(max_size=3), st.floats(0.1, 10), max_size=12),
    st.frozensets(st.text(max_size=3), max_size=12),
)
def test_at_most_half_of_a_pool_is_slow_and_all_that_are_really_are(
    times: dict[str, float], before: frozenset[str]
) -> None:
    found = slower_than_peers(times, before)
    assert all(factor >= WELL for factor in found.values())
    assert 2 * len(found) <= max(len(times), 0) + 1
    assert slower_than_peers(times, found.keys() | before).keys() >= slower_than_peers(times, before).keys()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_changes_nothing(seconds: float) -> None:
    row = DecodeRow(batch=2.0, context_tokens=10.0, seconds_per_step=seconds)
    assert Pace().after(row, SPEED) == Pace()
