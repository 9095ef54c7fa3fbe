"""Since when the load is of one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rehearsal.worlds import make_seen

from fulcrum.rehearsal.stretch import newest_stretch
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

NOW = 260.0


def arrivals(rate: float, start: float, end: float, random: np.random.Generator) -> np.ndarray:
    return np.sort(random.uniform(start, end, random.poisson(rate * (end - start))))


def two_kinds(step: float, before: dict[str, float], after: dict[str, float], seed: int) -> Seen:
    """Lengths are log-normal around a mean."""
    random = np.random.default_rng(seed)
    parts: list[Any] = []
    for kind, start, end in ((before, 0.0, step), (after, step, NOW)):
        times = arrivals(kind["rate"], start, end, random)
        lengths = [kind[of] * random.lognormal(-0.125, 0.5, len(times)) for of in ("prompt", "answer")]
        parts.append((times, *lengths))
    times, prompts, answers = (np.concatenate(column) for column in zip(*parts, strict=True))
    return make_seen(times, prompt=np.ceil(prompts).astype(np.int64), made=np.ceil(answers).astype(np.int64))


USUAL = {"rate": 3.0, "prompt": 900.0, "answer": 150.0}


@pytest.mark.parametrize("step", [90.0, 150.0, 215.0])
@pytest.mark.parametrize("other", [{"rate": 12.0}, {"rate": 0.3}, {"prompt": 2500.0}, {"answer": 40.0}], ids=str)
@pytest.mark.parametrize("seed", [3, 4])
def test_a_step_ends_the_stretch(step: float, other: dict[str, float], seed: int) -> None:
    """It is found to within the block of time that holds it, which is half as long as what is newer."""
    since = newest_stretch(two_kinds(step, USUAL | other, USUAL, seed), NOW)
    assert abs(since - step) <= max(TUNING.stretch_seconds / 2, (NOW - step) / 2)


@pytest.mark.parametrize("seed", range(6))
def test_a_load_in_bursts_is_one_stretch(seed: int) -> None:
    """Two requests at a time, as a client sends them: their counts vary twice as much as a Poisson variable's."""
    random = np.random.default_rng(seed)
    times = np.repeat(arrivals(2.0, 0.0, NOW, random), 2)
    prompts, answers = (np.ceil(random.lognormal(6.0, 1.0, len(times))).astype(np.int64) for _ in range(2))
    assert newest_stretch(make_seen(times, prompt=prompts, made=answers), NOW) == 0.0


def test_answers_that_run_say_nothing_about_lengths() -> None:
    """The newest answers are short because they have only begun."""
    times = np.linspace(0.0, NOW - 0.1, 500)
    running = times > NOW - 25.0
    assert newest_stretch(make_seen(times, made=np.where(running, 2, 400), ended=~running), NOW) == 0.0


def test_a_silence_ends_the_stretch() -> None:
    """The load stopped for two minutes, and began again 40 s ago."""
    times = np.concatenate([np.linspace(0.0, 100.0, 300), np.linspace(NOW - 40.0, NOW - 0.1, 120)])
    assert newest_stretch(make_seen(times), NOW) >= NOW - 80.0


@pytest.mark.parametrize("count", [1, 2, 19])
def test_few_requests_are_one_stretch(count: int) -> None:
    times = np.linspace(NOW - 9.0, NOW - 1.0, count)
    prompts = np.where(np.arange(count) % 2 == 0, 10, 9000)
    assert newest_stretch(make_seen(times, prompt=prompts), NOW) == 0.0


def test_what_is_newest_has_enough_requests_to_compare_with() -> None:
    """Five requests in the last 40 s, after many shorter ones: they are too few to tell."""
    times = np.concatenate([np.linspace(0.0, 200.0, 400), np.linspace(230.0, 259.0, 5)])
    seen = make_seen(times, prompt=np.where(times > 220.0, 5000, 50))
    since = newest_stretch(seen, NOW)
    assert len(seen.since(since)) >= TUNING.least_requests
    assert since >= 190.0


def test_a_stretch_begins_no_earlier_than_time_does() -> None:
    assert newest_stretch(make_seen(np.linspace(0.0, 4.0, 30)), 4.5) == 0.0


@pytest.mark.parametrize("rate", [0.12, 0.2, 2.0])
def test_a_stretch_begins_no_earlier_than_what_is_looked_at(rate: float) -> None:
    """Of a cluster that has run for long only the last minutes are known: before them nothing was seen, not nothing
    came."""
    now = 5000.0
    times = np.arange(now - TUNING.memory_seconds + 0.5, now, 1 / rate)
    assert newest_stretch(make_seen(times), now) >= now - TUNING.memory_seconds
