"""Forecasts that do not come true: after three nothing is done by plays, after five that do it is again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.rehearsal.worlds import SLO, make_seen, split

from fulcrum.decide.rehearsed import Checked
from fulcrum.rehearsal.foretold import Course, Foretold
from fulcrum.rehearsal.memory import Memory
from fulcrum.rehearsal.trust import Forecast, Trust
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

STANDS, OTHER = split(2, 6), split(3, 5)
SECONDS = 100.0


def foretold(share: float) -> Foretold:
    """Two requests a second, of which such a share is inside, spread evenly."""
    times = np.arange(0.0, SECONDS, 0.5)
    inside = np.arange(len(times)) % 20 >= round((1 - share) * 20)
    return Foretold(draws=(Course(tuple(times.tolist()), tuple(inside.tolist())),), off=0.0)


def came(share: float, *, begin: float = 0.0, seconds: float = 2 * SECONDS, rate: float = 2.0) -> Seen:
    times = np.arange(begin, begin + seconds, 1 / rate)
    return make_seen(times, missed=np.arange(len(times)) % 20 < round((1 - share) * 20))


def forecast(share: float, *, asked_at: float = 0.0) -> Forecast:
    return Forecast(foretold=foretold(share), layout=STANDS, asked_at=asked_at, until=asked_at + SECONDS)


def after(trust: Trust, *pairs: tuple[float, float]) -> Trust:
    """Of forecasts one after the other: what was foretold, and what came."""
    for said, served in pairs:
        trust = trust.expecting(forecast(said)).after(came(served), 2 * SECONDS, 0.0, STANDS, SLO)
    return trust


WRONG, RIGHT = (0.95, 0.6), (0.8, 0.8)


def test_three_wrong_forecasts_in_a_row_lose_it_and_five_right_ones_win_it_back() -> None:
    trust = after(Trust(), *[WRONG] * 2, RIGHT, *[WRONG] * 2)
    assert (trust.wrong, trust.right, trust.lost) == (2, 0, False)
    assert trust.last == Checked(pytest.approx(0.95), pytest.approx(0.6))
    trust = after(trust, WRONG)
    assert trust.lost
    trust = after(trust, *[RIGHT] * 4)
    assert trust.lost
    assert after(trust, WRONG, *[RIGHT] * 4).lost, "five one after the other"
    assert not after(trust, RIGHT).lost
    assert not after(after(trust, RIGHT), *[WRONG] * 2).lost, "and then three again"


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_too_much_is_as_wrong_as_too_little(share: float) -> None:
    assert after(Trust(), (0.7, share)).wrong == 1


def test_what_chance_explains_is_not_wrong() -> None:
    """Misses that come all at once say little: a minute of them in a hundred seconds may or may not come."""
    times = np.arange(0.0, SECONDS, 0.5)
    burst = Foretold(draws=(Course(tuple(times.tolist()), tuple((times >= 40.0).tolist())),), off=0.0)
    told = Trust(forecast=replace(forecast(1.0), foretold=burst))
    assert told.after(came(0.8), 200.0, 0.0, STANDS, SLO).right == 1
    even = Trust(forecast=forecast(0.6))
    assert even.after(came(0.8), 200.0, 0.0, STANDS, SLO).wrong == 1
    unsure = Trust(forecast=replace(forecast(0.6), foretold=replace(foretold(0.6), off_error=0.15)))
    assert unsure.after(came(0.8), 200.0, 0.0, STANDS, SLO).right == 1


def test_few_requests_of_which_none_is_late_are_no_wrong_forecast() -> None:
    """One in twenty was to be late: of twenty-five that come, often none is; of eight hundred, some are."""
    times, random = np.arange(0.0, SECONDS, 0.5), np.random.default_rng(0)
    course = Course(tuple(times.tolist()), tuple((random.random(len(times)) >= 0.05).tolist()))
    told = Trust(forecast=replace(forecast(1.0), foretold=Foretold(draws=(course,), off=0.0)))
    assert told.after(came(1.0, rate=0.25), 200.0, 0.0, STANDS, SLO).right == 1
    assert told.after(came(1.0, rate=8.0), 200.0, 0.0, STANDS, SLO).wrong == 1


def test_a_forecast_waits_until_it_is_known_what_came() -> None:
    told = Trust(forecast=forecast(0.95))
    request_seconds = SLO.ttft_seconds + 10 * SLO.tpot_seconds
    for now in (10.0, 59.0, 59.9 + request_seconds):
        assert told.after(came(0.6, seconds=now), now, 0.0, STANDS, SLO) == told
    assert told.after(came(0.6, seconds=70.0), 61.0 + request_seconds, 0.0, STANDS, SLO).wrong == 1
    few = came(0.6, rate=(TUNING.least_requests - 1) / SECONDS)
    assert told.after(few, 200.0, 0.0, STANDS, SLO) == told
    assert told.expecting(forecast(0.1)) == told


def test_requests_that_came_before_it_do_not_count() -> None:
    later = Trust(forecast=forecast(0.95, asked_at=100.0))
    times = np.arange(0.0, 300.0, 0.5)
    seen = make_seen(times, missed=(times < 100.0) | (times >= 200.0) | (np.arange(len(times)) % 20 == 0))
    assert later.after(seen, 300.0, 0.0, STANDS, SLO).last == Checked(pytest.approx(0.95), pytest.approx(0.95))


@pytest.mark.parametrize(("pace", "served"), [(1.5, 0.0), (0.7, 1.0)])
def test_answers_under_way_count_by_their_pace_so_far(pace: float, served: float) -> None:
    """Slow answers end last: what has not ended is late as far as it is behind. `pace`: in parts of the promise."""
    times, now = np.arange(0.0, SECONDS, 0.5), 2 * SECONDS
    made = (now - times) / (pace * SLO.tpot_seconds)
    told = Trust(forecast=forecast(served))
    assert told.after(make_seen(times, made=made, ended=False), now, 0.0, STANDS, SLO).last == Checked(served, served)


def test_another_layout_or_load_is_not_what_it_was_about() -> None:
    told = Trust(forecast=forecast(0.95), wrong=2)
    dropped = Trust(wrong=2)
    assert told.after(came(0.6), 200.0, 0.0, OTHER, SLO) == dropped
    assert told.after(came(0.6), 200.0, 50.0, STANDS, SLO) == dropped


def test_it_is_forgotten_with_the_requests_of_then() -> None:
    """However often was asked since then, as where the load changes before a forecast can be held against it."""
    lost = Trust(wrong=3, lost=True, checked_at=1000.0)
    for asked_at in (1000.0, 1000.0 + TUNING.memory_seconds):
        memory = Memory(asked_at=asked_at, trust=lost)
        assert memory.distrusts(1000.0 + TUNING.memory_seconds - 1.0)
        assert not memory.distrusts(1000.0 + TUNING.memory_seconds)
    assert not Memory(asked_at=1000.0, trust=replace(lost, wrong=2, lost=False)).distrusts(1000.0)
    assert lost.known(1000.0 + TUNING.memory_seconds) == Trust()
