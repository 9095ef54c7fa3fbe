"""When a rehearsal is worth its cost, and what is still true from the last one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.rehearsal.worlds import make_seen, make_stage, split

from fulcrum.decide.rehearsed import Wanted
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.foretold import Course, Foretold
from fulcrum.rehearsal.memory import Memory, remembered
from fulcrum.rehearsal.play import Stood
from fulcrum.rehearsal.rehearse import Answer, Offset, Question
from fulcrum.rehearsal.trust import Forecast, Trust
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

STANDS, OTHER = split(2, 6), split(3, 5)
OFFSETS = {STANDS: Offset(-0.4, 0.02)}
OF = ("k", STANDS)
TOLD = Foretold(draws=(Course((1.0,), (True,)),), off=0.0)
STAYED = Memory(since=100.0, asked_at=180.0, key="k", stayed=STANDS, offsets=OFFSETS)


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
    assert Memory().asks(seen(share), 50.0, 200.0, attainment, of=OF) is asks


def test_what_is_older_than_the_load_of_now_counts_for_nothing() -> None:
    times = np.linspace(0.0, 200.0, 400)
    was_bad = make_seen(times, missed=times < 100.0)
    assert not Memory().asks(was_bad, 120.0, 200.0, 0.9, of=OF)
    assert Memory().asks(was_bad, 50.0, 200.0, 0.9, of=OF)
    assert not Memory().asks(seen(1.0, count=TUNING.least_requests - 1), 50.0, 200.0, 0.9, of=OF)


def test_after_a_stay_it_asks_again_once_a_quarter_more_is_known() -> None:
    """80 s were known at second 180."""
    late = seen(0.5)
    assert [STAYED.asks(late, 100.0, now, 0.9, of=OF) for now in (185.0, 199.0, 200.5)] == [False, False, True]


def test_after_a_change_it_asks_at_once() -> None:
    assert replace(STAYED, stayed=None).asks(seen(0.5), 100.0, 181.0, 0.9, of=OF)


def test_another_load_is_asked_about_at_once_and_drops_the_offsets() -> None:
    late = seen(0.5)
    assert STAYED.asks(late, 125.0, 185.0, 0.9, of=OF)
    assert not STAYED.asks(late, 115.0, 185.0, 0.9, of=OF)
    assert STAYED.known_offsets(125.0, 185.0, "k") == {}
    assert STAYED.known_offsets(115.0, 185.0, "k") == OFFSETS
    assert STAYED.known_offsets(100.0, 185.0, "k") == OFFSETS


def test_requests_that_are_forgotten_do_not_make_another_load() -> None:
    """The same load for half an hour: it can only be seen for ten minutes."""
    long_ago = Memory(since=400.0, asked_at=1000.0, key="k", stayed=STANDS, offsets=OFFSETS)
    for now in (1100.0, 1200.0, 1900.0):
        since = now - TUNING.memory_seconds
        assert long_ago.known_offsets(since, now, "k") == OFFSETS
        assert long_ago.known_offsets(since + 349.0, now, "k") == {}
    assert not long_ago.asks(seen(0.5, now=1100.0), 500.0, 1100.0, 0.9, of=OF)


def after(memory: Memory, now: float, standing: Layout, stands_since: float, chosen: Layout = OTHER) -> Memory:
    """What is remembered after a rehearsal."""
    answer = Answer(
        chosen=chosen,
        foretold=TOLD,
        requests=200,
        future_seconds=60.0,
        compared=(),
        offsets=OFFSETS,
        plays=5,
        played_requests=900,
    )
    wanted = Wanted(key="k", standing=standing, flexible=frozenset({"p"}), mixes=True, stands_since=None)
    question = Question(
        stage=make_stage(standing, stood=memory.before(stands_since, now)),
        seen=seen(0.5),
        since=100.0,
        now=now,
        flexible=["p"],
        stands_since=stands_since,
    )
    return remembered(answer, wanted, question, memory)


@pytest.mark.parametrize(("chosen", "stayed"), [(STANDS, True), (OTHER, False)])
def test_a_rehearsal_is_remembered(chosen: Layout, *, stayed: bool) -> None:
    found = after(Memory(), 180.0, STANDS, 20.0, chosen)
    told = Forecast(foretold=TOLD, layout=chosen, asked_at=180.0, until=240.0)
    trust = Trust(forecast=told)
    assert found == replace(STAYED, stayed=STANDS if stayed else None, stood=((STANDS, 20.0),), trust=trust)


def test_what_stood_before_is_known_for_as_long_as_requests_are() -> None:
    memory = after(Memory(), 180.0, STANDS, 0.0)
    assert memory.before(0.0, 200.0) == (), "it still stands"
    assert memory.before(182.0, 200.0) == (Stood(STANDS, 18.0),)
    memory = after(memory, 200.0, OTHER, 182.0)
    memory = after(memory, 230.0, OTHER, 182.0, OTHER)
    assert memory.before(182.0, 240.0) == (Stood(STANDS, 58.0),), "said once"
    third = split(4, 4)
    assert memory.before(250.0, 260.0) == (Stood(STANDS, 78.0), Stood(OTHER, 10.0))
    late = 182.0 + TUNING.memory_seconds
    assert memory.before(250.0, late) == (Stood(OTHER, late - 250.0),)
    assert after(memory, late, third, 250.0).stood == ((OTHER, 182.0), (third, 250.0))


@pytest.mark.parametrize("of", [("other", STANDS), ("k", OTHER)])
def test_other_workers_another_promise_or_layout_is_another_question(of: tuple[str, Layout]) -> None:
    late = seen(0.5)
    assert not STAYED.asks(late, 100.0, 185.0, 0.9, of=OF)
    assert STAYED.asks(late, 100.0, 185.0, 0.9, of=of)
    assert STAYED.known_offsets(100.0, 185.0, of[0]) == (OFFSETS if of[0] == "k" else {})
