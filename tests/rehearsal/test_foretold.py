"""What is said of the requests to come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.rehearsal.foretold import Course, Foretold


def course(inside: list[bool] | np.ndarray, *, seconds: float = 200.0) -> Course:
    """Requests that come at even times."""
    return Course(tuple(np.linspace(0.0, seconds, len(inside), endpoint=False).tolist()), tuple(map(bool, inside)))


def test_of_what_differs_by_chance_the_share_of_all_counts() -> None:
    """One of five is late, whenever it comes: twenty requests say less of the next twenty than four hundred do."""
    random = np.random.default_rng(1)
    told = [course(random.random(400) < 0.8) for _ in range(200)]
    of_first = np.array([np.mean(each.inside[:20]) for each in told])
    errors = np.array([each.share(10.0) for each in told]) - 0.8
    assert (errors**2).mean() < 0.5 * ((of_first - 0.8) ** 2).mean()
    assert abs(errors.mean()) < 0.01


def test_a_queue_that_is_worked_off_counts_for_what_comes_first() -> None:
    """Nothing is in time for a minute, and then all is."""
    told = course(np.arange(400) >= 120)
    assert told.share(60.0) < 0.15
    assert told.share(120.0) == pytest.approx(0.5, abs=0.1)
    assert told.share(200.0) == pytest.approx(0.7)


@given(inside=st.lists(st.booleans(), min_size=1, max_size=60), seconds=st.floats(0.1, 300.0))
def test_it_is_between_the_share_of_the_first_ones_and_that_of_all(*, inside: list[bool], seconds: float) -> None:
    told = course(inside)
    first = [one for one, at in zip(told.inside, told.after_seconds, strict=True) if at < seconds]
    shares = sorted((np.mean(inside), np.mean(first)))
    assert shares[0] - 1e-9 <= told.share(seconds) <= shares[1] + 1e-9


def test_draws_count_alike_and_what_plays_are_off_is_added() -> None:
    draws = course([True] * 40), course([True, False] * 20)
    assert Foretold(draws=draws, off=0.0).inside(200.0) == pytest.approx(0.75)
    assert Foretold(draws=draws, off=-0.5).inside(200.0) == pytest.approx(0.25)
    assert Foretold(draws=draws, off=0.5).inside(200.0) == 1.0
