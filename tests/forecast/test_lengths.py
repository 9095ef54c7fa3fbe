"""Expected prompt and output lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.forecast.lengths import expected_tokens

NAN = float("nan")


@pytest.mark.parametrize(
    ("tokens", "rate", "expected"),
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
def test_expected(tokens: list[float], rate: list[float], expected: float | None) -> None:
    found = expected_tokens(np.array(tokens), np.array(rate), step=2)
    assert found == (None if expected is None else pytest.approx(expected))


def test_noise_is_averaged_out() -> None:
    tokens = 1000 + 300 * np.random.default_rng(0).normal(size=300)
    assert expected_tokens(tokens, np.ones(300), step=2) == pytest.approx(1000, abs=150)


def test_a_change_of_mix_is_followed_at_once_where_there_is_little_noise() -> None:
    tokens = np.repeat([500.0, 4000.0, 500.0, 4000.0], 40)
    assert expected_tokens(tokens[:122], np.ones(122), step=2) == pytest.approx(4000)


def test_intervals_count_by_their_requests() -> None:
    rng = np.random.default_rng(1)
    busy = np.arange(200) % 2 == 0
    tokens = np.where(busy, 1000.0 + 10 * rng.normal(size=200), rng.uniform(1, 10_000, size=200))
    found = expected_tokens(tokens, np.where(busy, 100.0, 0.01), step=2)
    assert found == pytest.approx(1000, abs=20)


measured = st.just(0.0) | st.floats(min_value=1e-6, max_value=1e6) | st.just(NAN)


@given(st.lists(st.tuples(measured, measured), max_size=40), st.integers(1, 50))
def test_always_within_what_was_measured(rows: list[tuple[float, float]], step: int) -> None:
    tokens, rate = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = expected_tokens(tokens, rate, step=step)
    known = tokens[np.isfinite(tokens)]
    if not len(known):
        assert found is None
    else:
        assert found is not None
        assert known.min() * (1 - 1e-6) <= found <= known.max() * (1 + 1e-6)
