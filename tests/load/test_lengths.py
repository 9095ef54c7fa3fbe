"""Lengths of the present load, from what came and what ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from fulcrum.load.lengths import (
    Arrived,
    Lengths,
    Measured,
    Moments,
    begun,
    common_spread,
    lengths,
    standard_error,
)
from fulcrum.load.tuning import TUNING

WINDOW = 10.0
UNKNOWN = (Measured(), Measured())


@dataclass(frozen=True)
class Came:
    """A request: when, how long its prompt is, and the output that was expected of it (0: nobody knew)."""

    at: float
    prompt: float
    output: float = 0.0


def arrived(came: Sequence[Came], *, since: float) -> Arrived:
    seen = [one for one in came if one.at >= since]
    return Arrived(
        requests=len(seen),
        prompt_tokens=sum(one.prompt for one in seen),
        prompt_squares=sum(one.prompt**2 for one in seen),
        outputs=sum(one.output > 0 for one in seen),
        output_tokens=sum(one.output for one in seen),
    )


def parts(came: Sequence[Came]) -> tuple[Arrived, list[Arrived]]:
    """The window from 0 to `WINDOW`, and its newest parts."""
    return arrived(came, since=0), [arrived(came, since=WINDOW * (1 - part)) for part in TUNING.newest_parts]


def ended(requests: float, length: float, expected: float) -> Measured:
    return Measured(requests=requests, tokens=requests * length, expected=requests, expected_tokens=requests * expected)


def of(came: Sequence[Came], *, outputs: tuple[Measured, Measured] = UNKNOWN) -> Lengths:
    return lengths(arrived(came, since=0), prompts=UNKNOWN, outputs=outputs)


def steady(prompt: float, *, begin: float = 0.0, end: float = WINDOW, output: float = 0.0) -> list[Came]:
    return [Came(at, prompt, output) for at in np.arange(begin, end, 0.5)]


def test_a_steady_load_is_taken_as_a_whole() -> None:
    found = of(steady(100, output=20), outputs=(ended(15, 20, 20), ended(300, 20, 20)))
    assert (found.isl_tokens, found.isl_cv2, found.isl_seen) == (100, 0, 20)
    assert found.osl_tokens == pytest.approx(20)
    assert 10 < found.osl_seen < 20


def test_expectations_are_corrected_by_what_ended() -> None:
    """Everybody makes twice what was expected, of late."""
    few = of(steady(100, output=20), outputs=(ended(2, 40, 20), ended(300, 20, 20)))
    many = of(steady(100, output=20), outputs=(ended(80, 40, 20), ended(300, 20, 20)))
    assert few.osl_tokens is not None
    assert 20 < few.osl_tokens < 25
    assert many.osl_tokens == pytest.approx(38, abs=1)


def test_prompts_are_corrected_where_all_estimates_are_wrong() -> None:
    half = ended(50, 100, 50)
    assert lengths(arrived(steady(50), since=0), prompts=(half, half), outputs=UNKNOWN).isl_tokens == pytest.approx(100)


def test_those_of_whom_nothing_was_expected_do_not_count() -> None:
    """As after the start of a gateway: it learned nothing yet, while others answer already."""
    came = steady(100, end=5) + steady(100, begin=5, output=20)
    late = Measured(requests=100, tokens=2000, expected=10, expected_tokens=200)
    assert of(came, outputs=(late, late)).osl_tokens == pytest.approx(20)


def test_answers_are_at_least_as_long_as_those_under_way_until_one_has_ended() -> None:
    came = steady(100, output=300)
    assert of(came).osl_tokens == pytest.approx(300)
    assert of(came).osl_at_least
    assert not of(came, outputs=(ended(1, 300, 300), ended(1, 300, 300))).osl_at_least


def test_without_estimates_those_that_ended_are_the_load() -> None:
    """Gateways of an earlier version."""
    old = Measured(requests=10, tokens=700)
    found = lengths(Arrived(), prompts=(old, old), outputs=(old, old))
    assert (found.isl_tokens, found.isl_seen, found.osl_tokens, found.osl_seen) == (70, 10, 70, 10)
    assert found.isl_cv2 is None


def test_nothing_at_all_is_unknown() -> None:
    found = of([])
    assert (found.isl_tokens, found.osl_tokens) == (None, None)


def test_after_a_pause_the_load_began_within_the_window() -> None:
    assert begun(*parts(steady(100, begin=6))) == TUNING.newest_parts.index(0.5)
    assert begun(*parts(steady(100))) is None


def test_single_requests_are_no_beginning() -> None:
    assert begun(*parts([Came(9.5, 100)])) is None
    assert begun(*parts([])) is None


def test_few_that_are_alike_say_little() -> None:
    assert standard_error(0.0, 1) > 0.5 > standard_error(0.0, 4) > standard_error(0.0, 40) > 0
    assert standard_error(1.0, 100) == pytest.approx(0.1)


def test_the_spread_is_that_of_minutes_around_the_mean_of_their_stretch() -> None:
    """Whether one very long prompt came in the window says little; and lengths that change over time are no spread."""
    stretches = [arrived([Came(0, 50.0), Came(0, 150.0)], since=0), arrived([Came(0, 500.0), Came(0, 1500.0)], since=0)]
    came = arrived(steady(100), since=0)
    found = lengths(came, prompts=UNKNOWN, outputs=UNKNOWN, stretches=[Arrived(), *stretches])
    assert found.isl_tokens == 100
    assert found.isl_cv2 == pytest.approx(0.5)


def test_lengths_that_change_from_stretch_to_stretch_are_no_spread() -> None:
    alike = [Moments(count=4, tokens=4 * mean, squares=4 * mean**2) for mean in (10.0, 1000.0)]
    assert common_spread([Moments(), *alike]) == 0
    spread = Moments(count=2, tokens=200.0, squares=50.0**2 + 150.0**2)
    assert common_spread([spread, Moments(count=1, tokens=9000.0, squares=9000.0**2)]) == pytest.approx(0.5)
    assert common_spread([Moments(count=1, tokens=5.0, squares=25.0)]) is None


def test_prompts_that_came_alone_say_nothing_of_their_spread() -> None:
    alone = [arrived([Came(0, 100.0)], since=0), arrived([Came(0, 900.0)], since=0)]
    came = arrived([Came(float(at), 50.0 + 100 * (at % 2)) for at in range(10)], since=0)
    found = lengths(came, prompts=UNKNOWN, outputs=UNKNOWN, stretches=alone)
    assert found.isl_cv2 == pytest.approx(0.25)


def test_before_any_answer_has_ended_expected_lengths_count() -> None:
    came = steady(100, output=900)
    found = of(came)
    assert (found.osl_tokens, found.osl_seen) == (900, len(came))
    assert of(steady(100)).osl_tokens is None, "nothing was expected"
