"""Who would be in time, only not where the queues stand, waits at the gateway; and is served, whatever happens then."""

from __future__ import annotations

import pytest
from tests.admission.test_retry_after import bursts
from tests.admission.world import TTFT_SECONDS, World, make

from fulcrum.admission import Admission, Admit, Postponed, Reject
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Flight

START = 1000.0


def let_in(admission: Admission, view: ClusterView, prompt_tokens: float, now: float) -> Flight:
    incoming = admission.incoming(prompt_tokens=prompt_tokens, max_tokens=10)
    decided = admission.decide(incoming, view, now)
    assert isinstance(decided, Admit)
    return view.start(incoming, decided.route, now)


def before(prompts: int) -> tuple[Admission, ClusterView]:
    """A pair that has served as many prompts of half a second, exactly as predicted."""
    admission, view = make()
    for number in range(prompts):
        now = START - 2.0 * (prompts - number)
        flight = let_in(admission, view, 5000.0, now)
        view.prefill_done(flight, now + 0.5)
        view.finish(flight, now + 0.6)
    for _ in range(500):
        admission.ttft_margin.learn(0.5, 0.5, TTFT_SECONDS)
    return admission, view


def held_up(
    prompts: int, waiting: float = 4000.0, new: float = 3300.0
) -> tuple[Admission, ClusterView, Flight, Postponed | Reject]:
    """One prompt is computed until 0.3, one has waited for its end, and the next would be in the same step as that."""
    admission, view = before(prompts)
    first = let_in(admission, view, 3000.0, START)
    let_in(admission, view, waiting, START + 0.01)
    decided = admission.decide(admission.incoming(prompt_tokens=new, max_tokens=10), view, START + 0.28)
    assert not isinstance(decided, Admit)
    assert not hasattr(decided, "victims")
    return admission, view, first, decided


def test_who_would_hold_up_another_goes_behind_it() -> None:
    admission, view, first, postponed = held_up(200)
    assert isinstance(postponed, Postponed)
    assert (admission.waiting, admission.postponed) == (1, [1])
    assert admission.again(postponed, view, START + 0.29) is None, "the step has not begun"
    view.prefill_done(first, START + 0.3)
    decided = admission.again(postponed, view, START + 0.31)
    assert isinstance(decided, Admit)
    flight = view.start(postponed.incoming, decided.route, START + 0.31)
    assert flight.asked_at == pytest.approx(START + 0.28)
    assert flight.ttft_seconds == pytest.approx(0.03 + 0.39 + 0.33, abs=0.05)
    assert flight.ttft_seconds < TTFT_SECONDS
    assert (admission.waiting, admission.admitted_late, admission.rejected) == (0, [0], {})


def test_where_nothing_is_saved_nobody_waits() -> None:
    _, _, _, decided = held_up(10)
    assert isinstance(decided, Reject)
    assert decided.reason is Reason.TTFT_UNREACHABLE


def test_what_is_set_aside_for_one_is_not_there_for_others() -> None:
    # 0.5 % of 100 s are not enough for two of them.
    admission, view, _, postponed = held_up(200)
    assert isinstance(postponed, Postponed)
    other = admission.incoming(prompt_tokens=3300.0, max_tokens=10)
    assert isinstance(admission.decide(other, view, START + 0.285), Reject)
    for _ in range(2):
        admission.leave(postponed, view)
    assert isinstance(admission.decide(other, view, START + 0.285), Postponed)
    assert isinstance(admission.decide(other, view, START + 0.285), Reject), "it is given back once"


@pytest.mark.parametrize(("free_at", "served_at"), [(0.5, 1.3), (5.0, 2.3)])
def test_who_cannot_be_in_time_any_more_is_served_all_the_same(free_at: float, served_at: float) -> None:
    """When nobody waits for the worker, or after two promised TTFTs."""
    admission, view, first, postponed = held_up(200)
    assert isinstance(postponed, Postponed)
    now = START + 0.28
    decided = None
    while decided is None:
        now += 0.02
        assert now < START + 5
        if now > START + free_at and first.prefill.legs:
            for flight in list(first.prefill.legs):
                view.prefill_done(flight, START + 1.3)
        decided = admission.again(postponed, view, now) if now > START + 1.28 else None
    assert isinstance(decided, Admit)
    assert now == pytest.approx(START + served_at, abs=0.03)
    assert (admission.waiting, admission.admitted_late) == (0, [1])


def test_long_prompts_do_not_wait_where_many_short_ones_find_no_room() -> None:
    admission, view, _, _ = held_up(1000)
    short = admission.incoming(prompt_tokens=100.0, max_tokens=10)
    for number in range(200):
        now = START + 0.281 + 1e-5 * number
        decided = admission.decide(short, view, now)
        if isinstance(decided, Postponed):
            admission.leave(decided, view)
    many = admission.incoming(prompt_tokens=3300.0, max_tokens=10)
    admission.postponed[0] = 0
    assert isinstance(admission.decide(many, view, START + 0.29), Reject)
    assert isinstance(admission.decide(short, view, START + 0.29), (Postponed, Admit))


def test_only_so_many_wait_at_once() -> None:
    admission, view, _, first = held_up(2000, waiting=6800.0, new=400.0)
    assert isinstance(first, Postponed)
    more = [admission.incoming(prompt_tokens=400.0, max_tokens=10) for _ in range(70)]
    outcomes = [admission.decide(each, view, START + 0.285) for each in more]
    assert [isinstance(each, Postponed) for each in outcomes] == [True] * 63 + [False] * 7
    assert admission.waiting == 64


def test_when_all_workers_are_gone_it_is_told_so() -> None:
    admission, view, _, postponed = held_up(200)
    assert isinstance(postponed, Postponed)
    for name in list(view.workers):
        view.remove(name)
    decided = admission.again(postponed, view, START + 0.3)
    assert isinstance(decided, Reject)
    assert decided.reason is Reason.NO_WORKER
    assert admission.waiting == 0


def test_in_bursts_some_wait_and_all_of_them_are_served_most_of_them_in_time() -> None:
    admission, view = make(prefills=2, decodes=2)
    world = World(admission, view)
    world.run(bursts(16.0, 300.0, prompt=1000, output=50))
    assert admission.postponed[0] > 20
    assert (world.postponed, admission.waiting) == ([], 0)
    assert len(world.served) + len(world.rejected) == len(bursts(16.0, 300.0, prompt=1000, output=50))
    kept = [one for one in world.served if one.flight.started_at > one.flight.asked_at]
    assert len(kept) == admission.postponed[0]
    assert sum(one.good for one in kept) > 0.6 * len(kept)
