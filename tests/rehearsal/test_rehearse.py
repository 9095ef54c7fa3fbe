"""What a rehearsal chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.rehearsal.worlds import SLO, make_seen, make_stage, split, watch
from tests.simulation.worlds import poisson

from fulcrum.performance.layout import Layout
from fulcrum.rehearsal import rehearse as module
from fulcrum.rehearsal.future import Future
from fulcrum.rehearsal.play import Stage, play
from fulcrum.rehearsal.rehearse import Answer, Offset, Question, rehearse
from fulcrum.rehearsal.trust import Trust
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen

NOW = 45.0


@cache
def seen_under(layout: Layout, rate: float, prompt: float, output: float) -> Seen:
    load = poisson(rate=rate, count=int(rate * NOW), prompt=prompt, output=output, seed=21, spread=0.3)
    load = replace(load, arrival_seconds=load.arrival_seconds * NOW / (load.arrival_seconds[-1] + 0.01))
    ((_, found),), _ = watch(load, layout, [NOW])
    return found


def ask(seen: Seen, standing: Layout, **others: Any) -> Answer | None:
    return rehearse(
        Question(**({"since": 0.0, "now": NOW, "flexible": ["p"]} | others), stage=make_stage(standing), seen=seen)
    )


@cache
def prefill_heavy(seed: int = 0) -> Answer:
    """One of eight workers prefills 2 requests/s that take it 0.73 s each."""
    answer = ask(seen_under(split(1, 7), 2.0, 4000, 12), split(1, 7), seed=seed)
    assert answer is not None
    return answer


def test_more_workers_prefill_where_prompts_wait() -> None:
    answer = prefill_heavy()
    assert answer.chosen != split(1, 7)
    assert not answer.chosen.decode or dict(answer.chosen.prefill)["p"] >= 2
    assert answer.compared[0].layout == split(1, 7)
    assert answer.compared[-1].layout == answer.chosen
    shares = [each.inside for each in answer.compared]
    assert shares == sorted(shares)
    assert answer.gain > TUNING.sigmas * answer.error > 0.0
    assert answer.gain == pytest.approx((shares[-1] - shares[0]) * answer.requests, rel=0.3)


@pytest.mark.parametrize("answered", [prefill_heavy, lambda: ask(seen_under(split(4, 3), 1.2, 2000, 20), split(4, 3))])
def test_what_comes_under_the_chosen_layout_is_foretold(answered: Callable[[], Answer]) -> None:
    answer = answered()
    (chosen,) = (each for each in answer.compared if each.layout == answer.chosen)
    assert answer.foretold.inside(answer.future_seconds) == pytest.approx(chosen.inside, abs=0.1), "but what waits now"


def test_what_is_foretold_is_the_mean_of_both_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many answers have not ended: draws differ in how long they are."""
    shares: dict[Layout, list[float]] = {}

    def noted(stage: Stage, future: Future, layout: Layout, *, spare: float) -> Any:
        found = play(stage, future, layout, spare=spare)
        if found is not None:
            comes = future.scored & (future.load.arrival_seconds >= future.changes_at)
            shares.setdefault(layout, []).append(float(found[comes].mean()))
        return found

    monkeypatch.setattr(module, "play", noted)
    answer = ask(seen_under(split(6, 2), 5.0, 500, 150), split(6, 2), seed=1)
    assert answer is not None
    first, second = shares[answer.chosen]
    assert first != second
    off = answer.offsets.get(answer.chosen, Offset()).share
    told = answer.foretold.inside(answer.future_seconds)
    assert told == pytest.approx(min(max((first + second) / 2 + off, 0.0), 1.0))


def test_where_nothing_is_expected_what_runs_is_foretold() -> None:
    """Of so quick a load the newest half minute is played once more, and in that nothing came."""
    count = 10_000
    seen = make_seen(np.linspace(0.0, 240.0, count), ended=np.arange(count) < count - 1)
    answer = ask(seen, split(4, 3), now=300.0)
    assert answer is not None
    assert answer.requests == 1
    assert answer.foretold.inside(30.0) == pytest.approx(answer.compared[0].inside)


def test_nothing_wins_while_plays_are_not_trusted_and_what_stands_is_foretold() -> None:
    seen = seen_under(split(1, 7), 2.0, 4000, 12)
    held = ask(seen, split(1, 7), trust=Trust(lost=True))
    assert held is not None
    assert held.chosen == split(1, 7)
    assert held.compared == prefill_heavy().compared, "they are played all the same"
    assert held.foretold.inside(held.future_seconds) == pytest.approx(held.compared[0].inside, abs=0.1)
    assert held.foretold.error > 0.0


def test_the_same_question_has_the_same_answer() -> None:
    again = ask(seen_under(split(1, 7), 2.0, 4000, 12), split(1, 7))
    assert again == prefill_heavy()


def test_more_workers_decode_where_answers_crowd() -> None:
    seen = seen_under(split(4, 1), 4.0, 300, 200)
    assert 0.0 < seen.ended.mean() < 1.0
    answer = ask(seen, split(4, 1))
    assert answer is not None
    assert answer.chosen != split(4, 1)
    assert not answer.chosen.decode or dict(answer.chosen.decode)["p"] >= 2


def test_what_serves_all_stays() -> None:
    answer = ask(seen_under(split(4, 3), 1.2, 2000, 20), split(4, 3))
    assert answer is not None
    assert answer.chosen == split(4, 3)
    assert answer.compared[0].inside > 0.97
    assert len(answer.compared) == 1, "none can win by a hundredth of the requests"
    assert (answer.gain, answer.error) == (0.0, 0.0)


def test_no_pool_that_flips_keeps_what_stands() -> None:
    seen = seen_under(split(1, 7), 2.0, 4000, 12)
    answer = ask(seen, split(1, 7), flexible=[])
    assert answer is not None
    assert (answer.chosen, answer.plays) == (split(1, 7), 1)


def in_ten(seen: Seen) -> Seen:
    """Nine of ten requests that ended were late, whatever plays say."""
    return replace(seen, missed=seen.missed | (np.arange(len(seen)) % 10 > 0))


def test_a_layout_that_serves_less_than_its_plays_say_is_left() -> None:
    seen = in_ten(seen_under(split(4, 3), 1.2, 2000, 20))
    answer = ask(seen, split(4, 3))
    assert answer is not None
    offset = answer.offsets[split(4, 3)]
    assert offset.share == pytest.approx(-0.9, abs=0.05)
    assert answer.compared[0].inside - offset.share > 0.97, "it looks well in plays"
    assert answer.compared[0].inside < 0.15, "what is told is what came"
    # Read from top to bottom each layout serves more than the one before, whatever the plays said.
    assert [each.inside for each in answer.compared] == sorted(each.inside for each in answer.compared)
    assert 0.0 < offset.error < 0.3
    assert answer.chosen != split(4, 3)


def test_what_a_layout_served_before_it_stood_is_not_held_against_it() -> None:
    seen = in_ten(seen_under(split(4, 3), 1.2, 2000, 20))
    answer = ask(seen, split(4, 3), stands_since=NOW - 5.0)
    assert answer is not None
    assert answer.offsets == {}
    assert answer.chosen == split(4, 3)


def test_a_layout_that_was_worse_than_its_plays_is_not_gone_back_to() -> None:
    """All that could win were off by more than they could bring."""
    answer = prefill_heavy()
    offsets = {split(each, 8 - each): Offset(-0.95, 0.01) for each in range(2, 8)} | {
        Layout.of(mixed={"p": 8}): Offset(-0.95, 0.01)
    }
    again = ask(seen_under(split(1, 7), 2.0, 4000, 12), split(1, 7), offsets=offsets)
    assert again is not None
    assert again.chosen == split(1, 7) != answer.chosen
    assert offsets.items() <= dict(again.offsets).items()


def test_too_few_requests_or_no_answer_say_nothing() -> None:
    seen = seen_under(split(4, 3), 1.2, 2000, 20)
    first = np.arange(len(seen)) < TUNING.least_requests - 1
    assert ask(seen.at(first), split(4, 3)) is None
    newest = float(seen.arrival_seconds[-(TUNING.least_requests - 1)])
    assert ask(seen, split(4, 3), since=newest) is None
    nothing = np.zeros(len(seen), dtype=np.bool_)
    unanswered = replace(seen, ended=nothing, made_tokens=seen.made_tokens * 0)
    assert ask(unanswered, split(4, 3)) is None
    refused = replace(seen, ended=nothing, refused=~nothing, made_tokens=seen.made_tokens * 0)
    assert ask(refused, split(4, 3)) is None


def test_the_slo_is_what_plays_are_judged_by() -> None:
    """A promise that no layout keeps: there is nothing to win."""
    seen = seen_under(split(1, 7), 2.0, 4000, 12)
    stage = make_stage(split(1, 7), slo=replace(SLO, ttft_seconds=0.01))
    answer = rehearse(Question(stage=stage, seen=seen, since=0.0, now=NOW, flexible=["p"]))
    assert answer is not None
    assert answer.chosen == split(1, 7)
    # What came was judged by another promise, which the offset tells.
    assert answer.compared[0].inside == pytest.approx(answer.offsets[split(1, 7)].share)
