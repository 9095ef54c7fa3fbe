"""What is played: the past, and what is expected to come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rehearsal.worlds import SLO, make_seen

from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.future import Future, Span, future, span_of
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

SPAN = Span(now=100.0, start=70.0, filled=85.0, since=40.0, scored_seconds=50.0, beyond_seconds=15.0)
TIMES = np.array([10.0, 45.0, 50.0, 75.0, 80.0, 90.0, 99.5])
PROMPTS = [11, 12, 13, 14, 15, 16, 17]
"""Each prompt has a length of its own, so that it is known whose copy is whose."""
SEEN = make_seen(
    TIMES,
    prompt=PROMPTS,
    made=[40, 40, 7, 9, 5, 0, 0],
    ended=[True, True, True, True, False, False, False],
    refused=[False, False, False, False, False, True, False],
    missed=[False, True, False, True, False, True, False],
)


def played(seen: Seen = SEEN, span: Span = SPAN, *, seed: int = 1, stands_since: float = 0.0) -> Future:
    return future(seen, span, np.random.default_rng(seed), longer=False, stands_since=stands_since)


def test_the_past_comes_as_it_was_and_then_the_stretch_again_and_again() -> None:
    """From second 70 to now, and then what came since second 40: 60 s, and 10 s of it once more."""
    found = played(span=replace(SPAN, beyond_seconds=20.0))
    assert found.changes_at == 30.0
    assert found.load.prompt_tokens.tolist() == [14, 15, 16, 17, *PROMPTS[1:], 12]
    again = [35.0, 40.0, 65.0, 70.0, 80.0, 89.5, 95.0]
    np.testing.assert_allclose(found.load.arrival_seconds, [5.0, 10.0, 20.0, 29.5, *again])


def test_what_comes_and_what_has_not_ended_counts() -> None:
    """Of the past the answers that run or have not begun; of the future the first 50 s, to second 80 of the play."""
    found = played()
    assert found.load.prompt_tokens[found.scored].tolist() == [15, 17, 12, 13, 14, 15]
    assert found.seen_seconds.tolist() == [80.0, 99.5, 45.0, 50.0, 75.0, 80.0]


def test_what_became_of_the_others_is_known_since_the_layout_stands() -> None:
    """In the second half of the past: the first one fills the system."""
    span = replace(SPAN, start=45.0, filled=72.5)
    found = played(span=span)
    assert found.load.prompt_tokens[found.known].tolist() == [14, 16]
    assert found.known_inside.tolist() == [False, False]
    found = played(span=span, stands_since=80.0)
    assert found.load.prompt_tokens[found.known].tolist() == [16]
    assert not played(span=replace(span, filled=100.0)).known.any(), "nothing is known of the time before"


def test_lengths_that_are_known_stay_and_the_others_are_longer_than_they_are() -> None:
    known = {12: 40, 13: 7, 14: 9}
    for seed in range(20):
        load = played(seed=seed).load
        for prompt, output in zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True):
            assert output == known.get(prompt, output)
            assert prompt != 15 or output > 5


def test_unknown_lengths_are_drawn_anew_for_each_draw_and_each_copy() -> None:
    """A hundred answers have ended, of 1 to 100 tokens; the last request, the longest prompt, runs."""
    seen = make_seen(
        np.linspace(0.0, 99.0, 101),
        prompt=np.arange(1, 102),
        made=np.append(np.arange(1, 101), 1),
        ended=np.arange(101) < 100,
    )

    def drawn(seed: int) -> list[int]:
        load = played(seen, replace(SPAN, since=90.0), seed=seed).load
        outputs: list[int] = load.output_tokens[load.prompt_tokens == 101].tolist()
        return outputs

    assert len(drawn(1)) == 7
    assert len(set(drawn(1))) > 1
    assert drawn(1) == drawn(1) != drawn(2)


def test_lengths_of_refused_requests_say_nothing() -> None:
    """Half were turned away: their answers are as long as others, not of no tokens."""
    refused = np.arange(200) % 2 == 0
    seen = make_seen(np.linspace(50.0, 99.0, 200), made=np.where(refused, 0, 64), ended=~refused, refused=refused)
    assert set(played(seen).load.output_tokens.tolist()) == {64}


def test_copies_share_with_others_only_what_several_prompts_share() -> None:
    ids = tuple((1, 2 + number % 2, 100 + number) for number in range(len(TIMES)))
    found = played(replace(SEEN, load=replace(SEEN.load, prefix_ids=ids)))
    again = found.load.arrival_seconds >= found.changes_at
    assert found.load.prefix_ids is not None
    own = []
    for prompt, copied, got in zip(
        found.load.prompt_tokens.tolist(), again.tolist(), found.load.prefix_ids, strict=True
    ):
        was = ids[PROMPTS.index(prompt)]
        assert got[:2] == was[:2]
        if not copied:
            assert got == was
        own.append(got[2])
    assert len(set(own)) == len(own), "a copy is not cached"


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 60),
    since=st.floats(0, 190),
    past=st.floats(0, 200),
    scored=st.floats(30, 300),
    beyond=st.floats(0, 200),
)
def test_whatever_was_seen_a_future_is_in_order(
    *, seed: int, count: int, since: float, past: float, scored: float, beyond: float
) -> None:
    random = np.random.default_rng(seed)
    now = 200.0
    times = np.sort(random.uniform(0.0, now, count))
    kind = random.integers(0, 4, count)
    seen = make_seen(
        times, prompt=np.arange(1, count + 1), made=np.where(kind == 0, 9, kind), ended=kind == 0, refused=kind == 3,
    )  # fmt: skip
    span = Span(
        now=now, start=now - past, filled=now - past / 2, since=since, scored_seconds=scored, beyond_seconds=beyond
    )
    found = future(seen, span, random, longer=bool(seed % 2), stands_since=0.0)
    at, prompts = found.load.arrival_seconds, found.load.prompt_tokens
    assert np.all(np.diff(at) >= 0)
    assert len(found.scored) == len(found.known) == len(at)
    assert len(found.seen_seconds) == found.scored.sum()
    assert len(found.known_inside) == found.known.sum()
    assert not np.any(found.known & found.scored)
    # Of each kind as many as time has room for, wherever the repeats end.
    assert int((at < found.changes_at).sum()) == int((times >= span.start).sum())
    since = max(since, now - scored - beyond)  # of a long stretch the newest part
    newest = np.flatnonzero(times >= since)
    for place in newest.tolist():
        first = found.changes_at + times[place] - since
        expected = first + (now - since) * np.arange(1000)
        expected = expected[expected < found.changes_at + scored + beyond - 1e-6]
        got = at[(prompts == place + 1) & (at >= found.changes_at)]
        assert len(expected) <= len(got) <= len(expected) + 1
        np.testing.assert_allclose(got[: len(expected)], expected)


def spanned(seconds: float, rate: float, *, ttft: float, answers: int = 20) -> Span:
    now = 700.0
    seen = make_seen(np.arange(now - seconds, now, 1 / rate))
    slo = LatencyTargets(ttft_seconds=ttft, tpot_seconds=0.1, attainment=0.9)
    return span_of(seen, now - seconds, now, np.full(50, answers), slo)


def test_nothing_hides_in_what_is_played() -> None:
    """Twice the promise of the first token and the time of an answer; and as long as the load has gone on."""
    assert spanned(30.0, 1.0, ttft=90.0, answers=300).scored_seconds == pytest.approx(210.0)
    assert spanned(240.0, 1.0, ttft=2.0).scored_seconds == pytest.approx(240.0)
    assert spanned(30.0, 1.0, ttft=2.0).scored_seconds == TUNING.shortest_seconds
    assert spanned(30.0, 0.7, ttft=2000.0).scored_seconds <= TUNING.longest_seconds


def test_what_runs_now_came_to_a_system_that_was_filled() -> None:
    """Promise and answer take 40 s and 30 s; half a minute more is played for each half of the past."""
    span = spanned(30.0, 1.0, ttft=40.0, answers=300)
    assert span.filled - span.start == pytest.approx(40.0 + 30.0 + TUNING.shortest_seconds / 2)
    assert span.now - span.filled == pytest.approx(span.filled - span.start)
    assert 700.0 - spanned(30.0, 0.7, ttft=2000.0).start == pytest.approx(TUNING.longest_seconds / 3)


@settings(max_examples=30)
@given(seconds=st.floats(20, 600), rate=st.floats(0.1, 10), ttft=st.floats(0.1, 2000), answers=st.integers(1, 20_000))
def test_spans_are_bounded(*, seconds: float, rate: float, ttft: float, answers: int) -> None:
    span = spanned(seconds, rate, ttft=ttft, answers=answers)
    assert 0 <= span.start < span.now
    assert TUNING.shortest_seconds / 2 <= span.scored_seconds <= TUNING.longest_seconds
    assert 0 <= span.beyond_seconds <= TUNING.longest_seconds


def test_a_quick_load_is_played_for_less_time() -> None:
    """Cost is counted in requests: those to come are a thousand at most."""
    span = spanned(300.0, 8.0, ttft=SLO.ttft_seconds)
    assert (span.scored_seconds + span.beyond_seconds) * 8.0 == pytest.approx(TUNING.most_requests, rel=0.02)


@pytest.mark.parametrize("seed", range(40))
def test_what_outlasts_all_that_ended_is_short_in_one_draw_and_long_in_the_other(seed: int) -> None:
    """Half of what it may be is less than twice the longest that was seen."""
    seen = make_seen(TIMES, prompt=PROMPTS, made=[40] * 7, ended=[False] * 7, refused=[False] * 7)
    short, long = (
        future(seen, SPAN, np.random.default_rng([seed, longer]), longer=longer, stands_since=0.0)
        for longer in (False, True)
    )
    assert 40 < short.load.output_tokens.max() <= 80 <= long.load.output_tokens.min() <= 400
