"""Lengths of answers that have not ended."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.rehearsal.lengths import AnswerLengths

MANY = 40_000


def draws(lengths: AnswerLengths, at_least: int = 0, seed: int = 7) -> np.ndarray:
    return lengths.draw(np.full(MANY, at_least, dtype=np.int64), np.random.default_rng(seed))


def test_draws_are_distributed_as_answers_that_all_ended() -> None:
    lengths = np.array([3, 40, 40, 41, 7, 900, 3, 3])
    found = draws(AnswerLengths(lengths, np.ones(8, dtype=np.bool_), 0.5))
    tokens, counts = np.unique(found, return_counts=True)
    assert tokens.tolist() == [3, 7, 40, 41, 900]
    assert counts / MANY == pytest.approx(np.array([3, 1, 2, 1, 1]) / 8, abs=0.012)


@pytest.mark.parametrize("at_least", [3, 5, 39, 40])
def test_draws_of_a_running_answer_are_distributed_as_those_that_got_longer(at_least: int) -> None:
    lengths = np.array([3, 40, 40, 41, 7, 900, 3, 3])
    found = draws(AnswerLengths(lengths, np.ones(8, dtype=np.bool_), 0.5), at_least)
    longer = lengths[lengths > at_least]
    for tokens in np.unique(longer):
        assert (found == tokens).mean() == pytest.approx((longer == tokens).mean(), abs=0.012)


@pytest.mark.parametrize("seed", range(4))
def test_cut_answers_bring_the_mean_nearer_to_the_truth(seed: int) -> None:
    """Answers of mean 300 that were watched for a time of their own: the long ones are those that still run."""
    random = np.random.default_rng(seed)
    true = np.ceil(random.gamma(2.0, 150.0, 600)).astype(np.int64)
    watched = random.integers(1, 700, 600)
    ended = true <= watched
    made = np.minimum(true, watched)
    assert 0.3 < ended.mean() < 0.9
    ended_alone = abs(float(made[ended].mean()) - 300.0)
    assert abs(float(draws(AnswerLengths(made, ended, 0.5)).mean()) - 300.0) < 0.5 * ended_alone


def test_the_order_of_the_answers_says_nothing() -> None:
    """An answer that runs is longer than what is made of it: it was at risk when others of that length ended."""
    made = np.array([10] * 20)
    running_first = np.arange(20) >= 10
    one, other = (AnswerLengths(made, ended, 0.5) for ended in (running_first, ~running_first))
    assert (draws(one) == 10).mean() == pytest.approx(0.5, abs=0.04)
    assert (draws(other) == 10).mean() == pytest.approx(0.5, abs=0.04)


@settings(max_examples=60)
@given(
    answers=st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=30),
    at_least=st.lists(st.integers(0, 800), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
)
def test_each_draw_is_longer_than_what_is_made(answers: list[tuple[int, bool]], at_least: list[int], seed: int) -> None:
    made = np.array([tokens for tokens, _ in answers], dtype=np.int64)
    ended = np.array([each for _, each in answers], dtype=np.bool_)
    known = np.array(at_least, dtype=np.int64)
    found = AnswerLengths(made, ended, 0.5).draw(known, np.random.default_rng(seed))
    assert len(found) == len(known)
    assert np.all(found > known)
    if len(made) and ended.all():
        inside = known < made.max()
        assert np.isin(found[inside], made).all()


def test_when_no_answer_has_ended_all_end_at_one_length_that_nobody_knows() -> None:
    made, none = np.array([120, 80, 200]), np.zeros(3, dtype=np.bool_)
    found = [np.unique(draws(AnswerLengths(made, none, number / 99), at_least=80)) for number in range(99)]
    scales = np.array([each.item() for each in found])
    assert scales.min() >= 200
    assert scales.max() <= 2000
    assert (scales > 400).mean() == pytest.approx(0.5, abs=0.1)
