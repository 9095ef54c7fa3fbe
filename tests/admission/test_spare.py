"""Idle time of the prefill workers: some of it goes to requests that come too late for their promise, after a burst."""

from __future__ import annotations

import pytest
from tests.admission.world import SPEED, TTFT_SECONDS, make

from fulcrum.admission import Admission, Admit, Postponed, Reject
from fulcrum.admission.postpone import PostponeRoom
from fulcrum.admission.spare import SpareTime
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Incoming, Route, route

START = 1000.0


@pytest.mark.parametrize(
    ("workers", "busy", "seconds", "spare_seconds"),
    [
        (4, 0.0, 10.0, 0.06 * 0.4 * 4 * 10),
        (4, 1.0, 10.0, 0.06 * (0.4 * 4 - 1.0) * 10),
        (4, 2.0, 1000.0, 0.0),  # half of them are busy: what is idle is there for the next burst
        (4, 0.0, 1e6, 2.0 * TTFT_SECONDS * 4),  # no more can be saved up
        (1, 0.0, 10.0, 0.06 * 0.4 * 10),
    ],
)
def test_a_part_of_what_is_idle_may_be_spent(workers: int, busy: float, seconds: float, spare_seconds: float) -> None:
    spare = SpareTime()
    spare.passed(workers, TTFT_SECONDS, 0.0)
    for second in range(1, 601):
        spare.let_in(busy)
        spare.passed(workers, TTFT_SECONDS, float(second))
    while spare.take(0.01):
        pass
    steps = 1000
    for step in range(1, steps + 1):
        spare.let_in(busy * seconds / steps)
        spare.passed(workers, TTFT_SECONDS, 600.0 + seconds * step / steps)
    assert not spare.take(1.05 * spare_seconds + 0.02)
    if spare_seconds:
        assert spare.take(0.9 * spare_seconds)


def test_where_nothing_is_known_of_the_load_nothing_is_spent() -> None:
    spare = SpareTime()
    for second in range(30):
        spare.passed(1, TTFT_SECONDS, START + second)
    assert not spare.take(0.01)


def test_what_is_given_back_is_there_again() -> None:
    spare = SpareTime()
    spare.passed(1, TTFT_SECONDS, 0.0)
    spare.passed(1, TTFT_SECONDS, 1e6)
    assert spare.take(2.0)
    assert not spare.take(0.1)
    spare.give_back(0.5)
    assert spare.take(0.5)


def idle_for(seconds: float) -> tuple[Admission, ClusterView]:
    """A pair with nothing to prefill for so long; its decode worker keeps its pace, but has none to spare."""
    admission, view = make()
    short = admission.incoming(prompt_tokens=1.0, max_tokens=1000)
    flights = []
    for _ in range(2):
        decided = admission.decide(short, view, START - seconds)
        assert isinstance(decided, Admit)
        flights.append(view.start(short, decided.route, START - seconds))
    for flight in flights:
        view.prefill_done(flight, START - seconds)
        view.finish(flight, START - seconds)
    apart = Incoming(prompt_tokens=1.0, output_tokens=1000.0, two_legs=True)
    for _ in range(32):
        found = route(apart, view, START)
        assert isinstance(found, Route)
        view.prefill_done(view.start(apart, found, START), START)
    return admission, view


def asked_behind(
    admission: Admission, view: ClusterView, tokens: float, before: float = 9000.0
) -> Admit | Reject | Postponed:
    """Ask for a prompt that finds another one before it, which has just begun."""
    first = Incoming(prompt_tokens=before, output_tokens=10.0, two_legs=True)
    found = route(first, view, START)
    assert isinstance(found, Route)
    view.start(first, found, START)
    decided = admission.decide(admission.incoming(prompt_tokens=tokens, max_tokens=10), view, START)
    assert isinstance(decided, Admit | Reject | Postponed)
    return decided


@pytest.mark.parametrize(
    ("idle_seconds", "tokens", "waits"),
    [
        (600.0, 5000.0, True),
        (60.0, 5000.0, False),  # not enough was saved, and for a start the load is not known
        (600.0, 8000.0, False),  # such a long one takes much
    ],
)
def test_who_would_be_late_waits_for_the_end_of_the_burst(idle_seconds: float, tokens: float, *, waits: bool) -> None:
    admission, view = idle_for(idle_seconds)
    decided = asked_behind(admission, view, tokens)
    if not waits:
        assert isinstance(decided, Reject)
        assert decided.reason is Reason.TTFT_UNREACHABLE
        return
    assert isinstance(decided, Postponed)
    # Not before nobody else waits, though that takes more than two promised TTFTs ...
    assert admission.again(decided, view, START + 2.5) is None
    for flight in list(view.workers["p0"].legs):
        view.prefill_done(flight, START + 2.6)
    assert isinstance(admission.again(decided, view, START + 2.61), Admit)
    assert (admission.waiting, admission.admitted_late, admission.rejected) == (0, [1], {})


def test_but_not_for_ever() -> None:
    admission, view = idle_for(600.0)
    decided = asked_behind(admission, view, 5000.0, before=120_000.0)
    assert isinstance(decided, Postponed)
    assert admission.again(decided, view, START + 9.9) is None
    assert isinstance(admission.again(decided, view, START + 10.1), Admit)


@pytest.mark.parametrize(
    ("elsewhere", "tokens", "let_in"), [(0, 40_000.0, True), (1, 25_000.0, True), (1, 40_000.0, False)]
)
def test_idle_workers_are_not_kept_from_others_for_what_comes_far_too_late(
    elsewhere: int, tokens: float, *, let_in: bool
) -> None:
    """The promise is 1 s, 10,000 tokens; where others are served, three times that is served on idle workers."""
    assert SPEED.coefficients.prefill_b == pytest.approx(1e-4)
    admission, view = make(prefills=2, decodes=2)
    other = admission.incoming(prompt_tokens=1000.0, max_tokens=10)
    for _ in range(elsewhere):
        found = route(other, view, START)
        assert isinstance(found, Route)
        view.start(other, found, START)
    decided = admission.decide(admission.incoming(prompt_tokens=tokens, max_tokens=10), view, START)
    assert isinstance(decided, Admit) is let_in, decided


@pytest.mark.parametrize(
    ("role", "queued", "elsewhere_seconds", "goes"),
    [
        (Role.MIXED, 0, 0.0, True),
        (Role.MIXED, 1, 0.0, False),
        (Role.MIXED, 0, 0.5, False),  # another gateway's prompts wait there
        (Role.PREFILL, 0, 0.0, False),
    ],
)
def test_a_mixed_worker_that_decodes_is_not_waited_for(
    role: Role, queued: int, elsewhere_seconds: float, *, goes: bool
) -> None:
    """Prompts come in chunks between its decode steps, and that counts as waiting; it nearly never ends."""
    admission, view = make(prefills=0, decodes=0)
    view.put("w", role, pool="pool")
    decoding = Incoming(prompt_tokens=1.0, output_tokens=1000.0)
    for number in range(2 + queued):
        found = route(decoding, view, START)
        assert isinstance(found, Route)
        flight = view.start(decoding, found, START)
        if number < 2:
            view.prefill_done(flight, START)
    if elsewhere_seconds:
        view.workers["w"].set_foreign(
            START + 2.0, seconds=elsewhere_seconds, running=0.0, context_tokens=0.0, share=0.0
        )
    asked = admission.incoming(prompt_tokens=5000.0, max_tokens=10)
    found = route(asked, view, START + 2.0)
    assert isinstance(found, Route)
    assert found.wait_seconds > 0
    postponed = Postponed(asked, found, START, spare=True)
    assert PostponeRoom().late(postponed, found, view, START + 2.0) is goes
