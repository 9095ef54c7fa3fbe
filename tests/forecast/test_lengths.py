"""Expected prompt and output lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.forecast.histories import Floats

from fulcrum.forecast.lengths import expected_tokens

NAN = float("nan")
DAY = 48


def expected(tokens: object, rate: object, *, steps: int = 2) -> Floats | None:
    return ahead(np.asarray(tokens), np.asarray(rate), steps=steps)


def ahead(tokens: Floats, rate: Floats, *, steps: int, season_intervals: float = DAY) -> Floats | None:
    found = expected_tokens(tokens, rate, steps=steps, season_intervals=season_intervals)
    return None if found is None else found.ahead


@pytest.mark.parametrize(
    ("tokens", "rate", "length"),
    [
        pytest.param([], [], None, id="empty"),
        pytest.param([NAN, NAN], [0.0, 1.0], None, id="never measured"),
        pytest.param([100.0], [1.0], 100.0, id="one"),
        pytest.param([100.0, NAN, NAN], [1.0, 0.0, NAN], 100.0, id="then gaps"),
        pytest.param([100.0] * 50, [1.0] * 50, 100.0, id="constant"),
        pytest.param([100.0] * 50, [NAN] * 50, 100.0, id="rates unknown"),
        pytest.param([100.0] * 50, [0.0] * 50, 100.0, id="requests ended, none arrived"),
    ],
)
def test_plain_histories(tokens: list[float], rate: list[float], length: float | None) -> None:
    found = expected(np.array(tokens), np.array(rate))
    assert (found is None) == (length is None)
    if found is not None:
        assert found.tolist() == pytest.approx([length, length])


def test_noise_is_averaged_out() -> None:
    tokens = 1000 + 300 * np.random.default_rng(0).normal(size=300)
    assert expected(tokens, np.ones(300)) == pytest.approx(1000, abs=150)


def test_a_change_of_mix_is_followed_at_once_where_there_is_little_noise() -> None:
    tokens = np.repeat([500.0, 4000.0, 500.0, 4000.0], 40)
    assert expected(tokens[:122], np.ones(122)) == pytest.approx(4000)


def test_intervals_count_by_their_requests() -> None:
    rng = np.random.default_rng(1)
    busy = np.arange(200) % 2 == 0
    tokens = np.where(busy, 1000.0 + 10 * rng.normal(size=200), rng.uniform(1, 10_000, size=200))
    found = expected(tokens, np.where(busy, 100.0, 0.01))
    assert found == pytest.approx(1000, abs=20)


def evenings(count: int, *, noise: float = 0.1) -> Floats:
    """Answers of 200 tokens, and of 800 in the last quarter of each season."""
    evening = np.arange(count) % DAY >= 36
    return np.asarray(np.where(evening, 800.0, 200.0) * np.exp(noise * np.random.default_rng(2).normal(size=count)))


@pytest.mark.parametrize(
    ("now", "coming"),
    [
        pytest.param(3 * DAY + 35, [200, 800], id="before the evening"),
        pytest.param(3 * DAY + 40, [800, 800], id="in the evening"),
        pytest.param(3 * DAY + 47, [800, 200], id="at its end"),
        pytest.param(3 * DAY + 10, [200, 200], id="in the morning"),
    ],
)
def test_an_evening_of_long_answers_is_expected_where_the_seasons_before_had_one(now: int, coming: list[float]) -> None:
    # Within two intervals of a step the mean of earlier seasons is one of both sides.
    found = ahead(evenings(now), np.ones(now), steps=6)
    assert found is not None
    if coming[0] == coming[1]:
        assert found.tolist() == pytest.approx([coming[0]] * 6, rel=0.25)
    else:
        assert (found[0] > found[-1]) == (coming[0] > coming[1])
        assert found[-1] == pytest.approx(coming[1], rel=0.25)


def test_a_season_that_is_longer_than_before_scales_what_is_usual() -> None:
    tokens = evenings(3 * DAY + 30)
    tokens[3 * DAY :] *= 2  # all of today's answers are twice as long
    found = ahead(tokens, np.ones(len(tokens)), steps=12)
    assert found is not None
    assert found[-1] == pytest.approx(1600, rel=0.3)


def test_no_season_is_made_of_noise() -> None:
    tokens = 1000 + 300 * np.random.default_rng(0).normal(size=4 * DAY)
    found = ahead(tokens, np.ones(len(tokens)), steps=6)
    assert found is not None
    assert len(set(found.tolist())) == 1


measured = st.just(0.0) | st.floats(min_value=1e-6, max_value=1e6) | st.just(NAN)


@given(st.lists(st.tuples(measured, measured), max_size=40), st.integers(1, 50))
def test_always_within_what_was_measured(rows: list[tuple[float, float]], step: int) -> None:
    tokens, rate = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = ahead(tokens, rate, steps=step, season_intervals=1e6)
    known = tokens[np.isfinite(tokens)]
    if not len(known):
        assert found is None
    else:
        assert found is not None
        assert known.min() * (1 - 1e-6) <= found.min() <= found.max() <= known.max() * (1 + 1e-6)


def test_what_was_misjudged_is_told_by_age() -> None:
    tokens = np.array([100.0] * 30 + [200.0, 100.0, NAN])
    found = expected_tokens(tokens, np.ones(33), steps=1, season_intervals=DAY)
    assert found is not None
    times = found.misjudged(tokens, np.array([0, 2, 3, 500]))
    assert times.tolist() == pytest.approx([1.0, 2.0, 1.0, 1.0], rel=0.1)
