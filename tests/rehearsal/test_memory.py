"""When a rehearsal is worth its cost, and what is still true from the last one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.rehearsal.worlds import make_seen, split

from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.memory import Memory, remembered
from fulcrum.rehearsal.rehearse import Answer, Offset
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

STANDS, OTHER = split(2, 6), split(3, 5)
OFFSETS = {STANDS: Offset(-0.4, 0.02)}
STAYED = Memory(since=100.0, asked_at=180.0, stayed=True, offsets=OFFSETS)


def seen(share: float, *, now: float = 200.0, count: int = 300) -> Seen:
    """Of the newest requests that share was late."""
    missed = np.arange(count) % 100 < round(share * 100)
    return make_seen(np.linspace(now - 150.0, now, count), missed=missed)


@pytest.mark.parametrize(
    ("attainment", "share", "asks"),
    [
        (0.9, 0.03, False),
        (0.9, 0.04, True),
        (0.7, 0.09, False),
        (0.7, 0.11, True),
        (0.99, 0.01, True),
        (0.99, 0.0, False),
    ],
)
def test_asks_nothing_below_a_third_of_the_misses_that_are_allowed(
    attainment: float, share: float, *, asks: bool
) -> None:
    assert Memory().asks(seen(share), 50.0, 200.0, attainment) is asks


def test_what_is_older_than_the_load_of_now_counts_for_nothing() -> None:
    times = np.linspace(0.0, 200.0, 400)
    was_bad = make_seen(times, missed=times < 100.0)
    assert not Memory().asks(was_bad, 120.0, 200.0, 0.9)
    assert Memory().asks(was_bad, 50.0, 200.0, 0.9)
    assert not Memory().asks(seen(1.0, count=TUNING.least_requests - 1), 50.0, 200.0, 0.9)


def test_after_a_stay_it_asks_again_once_a_quarter_more_is_known() -> None:
    """80 s were known at second 180."""
    late = seen(0.5)
    assert [STAYED.asks(late, 100.0, now, 0.9) for now in (185.0, 199.0, 200.5)] == [False, False, True]


def test_after_a_change_it_asks_at_once() -> None:
    assert replace(STAYED, stayed=False).asks(seen(0.5), 100.0, 181.0, 0.9)


def test_another_load_is_asked_about_at_once_and_drops_the_offsets() -> None:
    late = seen(0.5)
    assert STAYED.asks(late, 125.0, 185.0, 0.9)
    assert not STAYED.asks(late, 115.0, 185.0, 0.9)
    assert STAYED.known_offsets(125.0, 185.0) == {}
    assert STAYED.known_offsets(115.0, 185.0) == OFFSETS
    assert STAYED.known_offsets(100.0, 185.0) == OFFSETS


def test_requests_that_are_forgotten_do_not_make_another_load() -> None:
    """The same load for half an hour: it can only be seen for ten minutes."""
    long_ago = Memory(since=400.0, asked_at=1000.0, stayed=True, offsets=OFFSETS)
    for now in (1100.0, 1200.0, 1900.0):
        since = now - TUNING.memory_seconds
        assert long_ago.known_offsets(since, now) == OFFSETS
        assert long_ago.known_offsets(since + 349.0, now) == {}
    assert not long_ago.asks(seen(0.5, now=1100.0), 500.0, 1100.0, 0.9)


@pytest.mark.parametrize(("chosen", "stayed"), [(STANDS, True), (OTHER, False)])
def test_a_rehearsal_is_remembered(chosen: Layout, *, stayed: bool) -> None:
    answer = Answer(
        chosen=chosen, requests=200, future_seconds=60.0, compared=(), offsets=OFFSETS, plays=5, played_requests=900
    )
    assert remembered(answer, STANDS, 100.0, 180.0) == replace(STAYED, stayed=stayed)
