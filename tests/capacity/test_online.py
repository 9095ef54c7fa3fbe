"""Learning from reports: towards the truth, and never away from sense."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import SpeedSource

TRUTH = SpeedCoefficients(prefill_a=0.006, prefill_b=2e-5, prefill_c=1e-9, decode_a=0.008, decode_b=3e-5, decode_c=4e-8)
PROMPTS = (64, 256, 1024, 3000, 8000)
BATCHES = ((1, 800), (8, 900), (32, 1500), (96, 700), (200, 1200))


def scaled(k: SpeedCoefficients, factor: float) -> SpeedCoefficients:
    numbers = {name: each * factor for name, each in msgspec.structs.asdict(k).items() if name != "decode_curve"}
    return SpeedCoefficients(**numbers)


def prefill_row(k: SpeedCoefficients, lengths: Sequence[int], noise: float = 1.0) -> PrefillRow:
    tokens, squares = float(sum(lengths)), float(sum(length**2 for length in lengths))
    seconds = k.prefill_a * len(lengths) + k.prefill_b * tokens + k.prefill_c * squares
    return PrefillRow(prompts=len(lengths), tokens=tokens, squared_tokens=squares, seconds=seconds * noise)


def decode_row(k: SpeedCoefficients, batch: float, context: float, noise: float = 1.0) -> DecodeRow:
    seconds = k.decode_a + k.decode_b * batch + k.decode_c * batch * context
    return DecodeRow(batch=batch, context_tokens=batch * context, seconds_per_step=seconds * noise)


def rows(k: SpeedCoefficients, count: int, noise: Sequence[float] = (1.0,)) -> list[PrefillRow | DecodeRow]:
    """`count` rows of each kind over varied work."""
    found: list[PrefillRow | DecodeRow] = []
    for at in range(count):
        found.append(prefill_row(k, (PROMPTS[at % 5], PROMPTS[(at * 3 + 1) % 5]), noise[at % len(noise)]))
        batch, context = BATCHES[at % 5]
        found.append(decode_row(k, batch, context * (1 + at % 3), noise[(at + 1) % len(noise)]))
    return found


def worst_error(known: SpeedCoefficients, truth: SpeedCoefficients) -> float:
    def step(k: SpeedCoefficients, batch: float, context: float) -> float:
        return k.decode_a + k.decode_b * batch + k.decode_c * batch * context

    def prefill(k: SpeedCoefficients, length: float) -> float:
        return k.prefill_a + k.prefill_b * length + k.prefill_c * length**2

    return max(
        *(abs(prefill(known, length) / prefill(truth, length) - 1) for length in PROMPTS),
        *(abs(step(known, *work) / step(truth, *work) - 1) for work in BATCHES),
    )


def test_the_prior_is_what_is_known_first() -> None:
    online = OnlineSpeed.start(TRUTH)
    known = online.coefficients
    for got, expected in zip(msgspec.structs.astuple(known)[:6], msgspec.structs.astuple(TRUTH)[:6], strict=True):
        assert got == pytest.approx(expected)
    assert online.confidence == 0.0
    assert (online.prefill_rows, online.decode_rows) == (0, 0)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("source", list(SpeedSource))
def test_a_prior_that_is_off_is_put_right_within_tens_of_rows(factor: float, source: SpeedSource) -> None:
    online = OnlineSpeed.start(scaled(TRUTH, factor), trust=TRUST[source]).updated(rows(TRUTH, 40))
    assert worst_error(online.coefficients, TRUTH) < 0.05
    assert online.confidence > 0.8


@pytest.mark.parametrize("factor", [0.3, 0.7, 1.5, 3.0, 4.0])
def test_a_changed_truth_is_followed_within_tens_of_rows(factor: float) -> None:
    settled = OnlineSpeed.start(TRUTH).updated(rows(TRUTH, 200))
    changed = scaled(TRUTH, factor)
    assert worst_error(settled.updated(rows(changed, 40)).coefficients, changed) < 0.1
    assert worst_error(settled.updated(rows(changed, 60)).coefficients, changed) < 0.03


def test_a_change_of_one_coefficient_is_found() -> None:
    changed = msgspec.structs.replace(TRUTH, decode_c=TRUTH.decode_c * 4, prefill_c=TRUTH.prefill_c * 6)
    online = OnlineSpeed.start(TRUTH).updated(rows(changed, 80))
    assert online.coefficients.decode_c == pytest.approx(changed.decode_c, rel=0.1)
    assert online.coefficients.prefill_c == pytest.approx(changed.prefill_c, rel=0.1)


def test_a_coefficient_that_the_prior_has_as_zero_can_appear() -> None:
    prior = msgspec.structs.replace(TRUTH, prefill_c=0.0, decode_b=0.0)
    assert worst_error(OnlineSpeed.start(prior).updated(rows(TRUTH, 60)).coefficients, TRUTH) < 0.05


def test_one_kind_of_work_moves_all_coefficients_together() -> None:
    """Only batch 32 was seen: the machine is twice as slow there, so it likely is so everywhere."""
    online = OnlineSpeed.start(TRUTH).updated(decode_row(scaled(TRUTH, 2), 32, 1500) for _ in range(60))
    known = online.coefficients
    for batch, context in BATCHES:
        seconds = known.decode_a + known.decode_b * batch + known.decode_c * batch * context
        twice = 2 * (TRUTH.decode_a + TRUTH.decode_b * batch + TRUTH.decode_c * batch * context)
        assert seconds == pytest.approx(twice, rel=0.2)
    assert online.confidence == 0.0, "nothing was learnt about prefill"
    assert known.prefill_a == pytest.approx(TRUTH.prefill_a)


def test_an_outlier_moves_little() -> None:
    settled = OnlineSpeed.start(TRUTH).updated(rows(TRUTH, 50))
    after = settled.updated([decode_row(TRUTH, 32, 1500, noise=500.0), prefill_row(TRUTH, (1024,), noise=500.0)])
    assert worst_error(after.coefficients, TRUTH) < 0.15
    assert worst_error(after.updated(rows(TRUTH, 30)).coefficients, TRUTH) < 0.05


def test_one_row_in_ten_far_off_is_borne() -> None:
    noise = (*[1.0] * 9, 20.0)
    online = OnlineSpeed.start(scaled(TRUTH, 1.5)).updated(rows(TRUTH, 200, noise))
    assert worst_error(online.coefficients, TRUTH) < 0.25


def test_noise_averages_out() -> None:
    drawn = np.random.default_rng(7).lognormal(0.0, 0.15, size=400)
    online = OnlineSpeed.start(scaled(TRUTH, 2)).updated(rows(TRUTH, 300, [float(each) for each in drawn]))
    assert worst_error(online.coefficients, TRUTH) < 0.15


def test_confidence_grows_with_varied_rows_and_less_with_equal_ones() -> None:
    varied = [OnlineSpeed.start(TRUTH).updated(rows(TRUTH, count)).confidence for count in (1, 3, 10, 40)]
    assert varied == sorted(varied)
    alike: list[PrefillRow | DecodeRow] = [prefill_row(TRUTH, (1024,)), decode_row(TRUTH, 32, 1500)]
    equal = OnlineSpeed.start(TRUTH).updated(alike * 40).confidence
    assert equal < 0.5 < varied[-1]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_rows_with_impossible_numbers_are_passed_over(bad: float) -> None:
    online = OnlineSpeed.start(TRUTH).updated(
        [
            msgspec.structs.replace(prefill_row(TRUTH, (100,)), seconds=bad),
            msgspec.structs.replace(prefill_row(TRUTH, (100,)), tokens=bad),
            msgspec.structs.replace(decode_row(TRUTH, 1, 1), seconds_per_step=bad),
            msgspec.structs.replace(decode_row(TRUTH, 1, 1), batch=bad),
        ]
    )
    assert (online.prefill_rows, online.decode_rows) == (0, 0)


@pytest.mark.parametrize(("trust", "forgetting"), [(0.0, 0.9), (-1.0, 0.9), (math.nan, 0.9), (1.0, 0.0), (1.0, 1.1)])
def test_settings_that_cannot_be(trust: float, forgetting: float) -> None:
    with pytest.raises(ValueError, match="trust must be positive"):
        OnlineSpeed.start(TRUTH, trust=trust, forgetting=forgetting)


positive = st.floats(1e-9, 1e9)
any_rows = st.lists(
    st.one_of(
        st.builds(
            PrefillRow,
            prompts=st.integers(1, 10_000),
            tokens=positive,
            squared_tokens=st.floats(0, 1e15),
            seconds=positive,
        ),
        st.builds(DecodeRow, batch=positive, context_tokens=st.floats(0, 1e12), seconds_per_step=positive),
    ),
    max_size=30,
)
any_prior = st.builds(
    SpeedCoefficients,
    prefill_a=st.floats(0, 10),
    prefill_b=st.floats(0, 0.1),
    prefill_c=st.floats(0, 1e-3),
    decode_a=st.floats(0, 10),
    decode_b=st.floats(0, 0.1),
    decode_c=st.floats(0, 1e-3),
)


@given(prior=any_prior, found=any_rows)
@settings(max_examples=200)
def test_whatever_is_reported_the_coefficients_stay_finite_and_not_negative(
    prior: SpeedCoefficients, found: list[PrefillRow | DecodeRow]
) -> None:
    online = OnlineSpeed.start(prior).updated(found)
    assert all(math.isfinite(each) and each >= 0 for each in msgspec.structs.astuple(online.coefficients)[:6])
    assert 0.0 <= online.confidence <= 1.0


@given(
    factor=st.floats(0.2, 5.0),
    noise=st.lists(st.floats(0.75, 1.3), min_size=7, max_size=31),
    outliers=st.lists(st.tuples(st.integers(0, 1), st.floats(0.01, 100.0)), min_size=6, max_size=6),
)
@settings(max_examples=60)
def test_under_noise_and_outliers_the_speed_stays_near_the_truth(
    factor: float, noise: list[float], outliers: list[tuple[int, float]]
) -> None:
    """One row in ten may be anything; four in a row to the same side would be a new truth."""
    found = rows(TRUTH, 60, noise)
    for at, (kind, off) in enumerate(outliers):
        place = 22 * at + kind  # at another kind of work each time
        row = found[place]
        found[place] = (
            msgspec.structs.replace(row, seconds=row.seconds * off)
            if isinstance(row, PrefillRow)
            else msgspec.structs.replace(row, seconds_per_step=row.seconds_per_step * off)
        )
    online = OnlineSpeed.start(scaled(TRUTH, factor)).updated(found)
    assert worst_error(online.coefficients, TRUTH) < 1.0


@given(
    coefficients=any_prior,
    batch=st.floats(1, 1000),
    context=st.floats(1, 100_000),
    found=any_rows,
)
def test_predictions_grow_with_work(
    coefficients: SpeedCoefficients, batch: float, context: float, found: list[PrefillRow | DecodeRow]
) -> None:
    k = OnlineSpeed.start(coefficients).updated(found).coefficients
    here = k.decode_a + k.decode_b * batch + k.decode_c * context
    assert k.decode_a + k.decode_b * 2 * batch + k.decode_c * context >= here
    assert k.decode_a + k.decode_b * batch + k.decode_c * 2 * context >= here
