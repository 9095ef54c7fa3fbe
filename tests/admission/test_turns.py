"""Who is turned away for other classes only waits at the gateway, where its turn is predicted to come in time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.admission.test_overload import FREE, PREMIUM, STANDARD, TIERS, good_share, poisson, ran, turned_away
from tests.admission.world import SHORT_STEPS, World, make, steady

from fulcrum.admission import Admission, Admit, Postponed, Reject
from fulcrum.admission.turns import InLine
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import QosClass
from fulcrum.routing import Flight, Incoming

START = 1000.0
PREFILL = 0.1
"""Of each prompt here."""


class Desk:
    """A pair of workers that premium traffic keeps busy for six tenths of the time."""

    def __init__(self, classes: tuple[QosClass, ...] = TIERS, *, prefills: int = 1, gateways: int = 1) -> None:
        made, self.view = make(classes=classes, speed=SHORT_STEPS, prefills=prefills, decodes=prefills)
        self.admission = Admission(made.policy, classes, ttft_seconds=1.0, tpot_seconds=0.05, gateways=gateways)
        per_second = 6 * prefills / gateways
        for number in range(round(60 * per_second)):
            now = START - 60.0 + number / per_second
            self.done(self.let_in(PREMIUM, now), now + PREFILL)

    def ask(self, qos: int, now: float) -> Admit | Postponed | Reject:
        decided = self.admission.decide(self.incoming(qos), self.view, now)
        assert isinstance(decided, Admit | Postponed | Reject)
        return decided

    def incoming(self, qos: int) -> Incoming:
        return self.admission.incoming(prompt_tokens=1000.0, max_tokens=2, qos=qos)

    def let_in(self, qos: int, now: float) -> Flight:
        decided = self.ask(qos, now)
        assert isinstance(decided, Admit)
        return self.view.start(self.incoming(qos), decided.route, now)

    def in_line(self, qos: int, now: float) -> InLine:
        decided = self.ask(qos, now)
        assert isinstance(decided, InLine)
        return decided

    def done(self, flight: Flight, now: float) -> None:
        self.view.prefill_done(flight, now)
        self.view.finish(flight, now + 0.02)

    def again(self, one: Postponed, now: float) -> Admit | Reject | None:
        decided = self.admission.again(one, self.view, now)
        assert decided is None or isinstance(decided, Admit | Reject)
        return decided

    def preempted(self) -> int:
        tally = self.admission.rejected.get(("free", Reason.PREEMPTED))
        return tally.requests if tally is not None else 0


def test_it_goes_when_a_worker_has_nothing_before_it() -> None:
    desk = Desk()
    busy = desk.let_in(FREE, START)
    free = desk.in_line(FREE, START + 0.01)
    assert (desk.admission.waiting, desk.admission.postponed) == (1, [0, 0, 1])
    assert desk.again(free, START + 0.03) is None, "the one before is not done"
    desk.done(busy, START + 0.1)
    assert isinstance(desk.again(free, START + 0.11), Admit)
    assert free.incoming.waited_seconds == pytest.approx(0.1)
    assert (desk.admission.waiting, desk.admission.rejected) == (0, {})


def test_nobody_of_its_class_overtakes_it_and_higher_ones_do() -> None:
    desk = Desk()
    busy = desk.let_in(FREE, START)
    first, second = desk.in_line(FREE, START + 0.01), desk.in_line(FREE, START + 0.02)
    desk.done(busy, START + 0.1)
    assert not isinstance(desk.ask(FREE, START + 0.105), Admit), "though nothing is to do"
    assert desk.again(second, START + 0.11) is None
    premium = desk.let_in(PREMIUM, START + 0.115)
    assert desk.again(first, START + 0.12) is None
    desk.done(premium, START + 0.215)
    decided = desk.again(first, START + 0.22)
    assert isinstance(decided, Admit)
    flight = desk.view.start(first.incoming, decided.route, START + 0.22)
    assert desk.again(second, START + 0.23) is None, "the first is being served"
    desk.done(flight, START + 0.32)
    assert isinstance(desk.again(second, START + 0.33), Admit)


def test_who_waits_goes_by_rank_and_then_by_arrival() -> None:
    desk = Desk(tuple(replace(one, reserved=0.0) for one in TIERS))
    busy = desk.let_in(PREMIUM, START)
    free, standard = desk.in_line(FREE, START + 0.001), desk.in_line(STANDARD, START + 0.002)
    desk.done(busy, START + 0.1)
    assert desk.again(free, START + 0.11) is None
    assert isinstance(desk.again(standard, START + 0.11), Admit)
    assert isinstance(desk.again(free, START + 0.11), Admit)


def test_each_worker_may_serve_one_of_them() -> None:
    desk = Desk(prefills=2)
    busy = [desk.let_in(FREE, START) for _ in range(2)]
    free = [desk.in_line(FREE, START + 0.01) for _ in range(3)]
    for one in busy:
        desk.done(one, START + 0.1)
    for one in reversed(free[:2]):
        decided = desk.again(one, START + 0.11)
        assert isinstance(decided, Admit)
        desk.view.start(one.incoming, decided.route, START + 0.11)
    assert desk.again(free[2], START + 0.11) is None


def test_who_would_not_have_its_turn_in_time_is_told_so_at_once() -> None:
    desk = Desk()
    desk.let_in(FREE, START)
    kept = 0
    while isinstance(desk.ask(FREE, START + 0.01), InLine):
        kept += 1
    refused = desk.ask(FREE, START + 0.01)
    assert 1 <= kept <= 3, "a prompt takes 0.1 s of less than half a worker, and a second is promised"
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.CLASS_SHARE
    assert refused.retry_after_seconds is not None


def test_one_of_two_gateways_lets_half_as_many_wait() -> None:
    kept = []
    for gateways in (1, 2):
        desk = Desk(prefills=2, gateways=gateways)
        for _ in range(2):
            desk.let_in(FREE, START)
        number = 0
        while isinstance(desk.ask(FREE, START + 0.01), InLine):
            number += 1
        kept.append(number)
    assert kept[1] < 0.75 * kept[0]


def test_who_waited_in_vain_is_turned_away_before_it_would_be_late() -> None:
    desk = Desk()
    desk.let_in(FREE, START)  # and it hangs
    free = desk.in_line(FREE, START + 0.01)
    for after_seconds in (0.03, 0.3, 0.6):
        assert desk.again(free, START + after_seconds) is None
    decided = desk.again(free, START + 0.91)
    assert isinstance(decided, Reject)
    assert decided.reason is Reason.PREEMPTED
    assert decided.retry_after_seconds is not None
    assert (desk.preempted(), desk.admission.waiting) == (1, 0)


def test_after_many_have_waited_in_vain_fewer_wait() -> None:
    desk = Desk()
    desk.let_in(FREE, START)
    kept = 0
    while isinstance(free := desk.ask(FREE, START), InLine):
        kept += 1
        assert kept < 100
        decided = desk.again(free, START + 0.9)
        assert isinstance(decided, Reject)
    assert kept > 5


def test_a_client_that_goes_leaves_its_place_to_others() -> None:
    desk = Desk()
    desk.let_in(FREE, START)
    waiting = []
    while isinstance(free := desk.ask(FREE, START + 0.01), InLine):
        waiting.append(free)
    for _ in range(2):
        desk.admission.leave(waiting[0], desk.view)
    assert desk.admission.waiting == len(waiting) - 1
    assert isinstance(desk.ask(FREE, START + 0.01), InLine)
    assert isinstance(desk.ask(FREE, START + 0.01), Reject), "its place is given once"


def test_who_waits_when_all_workers_go_is_told_so() -> None:
    desk = Desk()
    desk.let_in(FREE, START)
    free = desk.in_line(FREE, START + 0.01)
    for name in tuple(desk.view.workers):
        desk.view.remove(name)
    decided = desk.again(free, START + 0.03)
    assert isinstance(decided, Reject)
    assert decided.reason is Reason.NO_WORKER
    assert desk.admission.waiting == 0


def test_where_the_decode_workers_are_kept_nobody_waits() -> None:
    """A batch does not become free between two requests."""
    admission, view = make(classes=TIERS, speed=SHORT_STEPS)
    world = World(admission, view)
    world.run(poisson(8, 60.0, 100, 200, qos=PREMIUM) + poisson(8, 60.0, 100, 200, qos=FREE))
    assert admission.rejected["free", Reason.CLASS_SHARE].requests > 100
    assert sum(admission.postponed) < 0.05 * len(world.served)


@pytest.mark.parametrize("flood", [0.4, 3.5])
def test_a_worker_of_which_half_is_asked_for_serves_others_meanwhile(flood: float) -> None:
    capacity = 10.0
    admission, view = make(classes=TIERS, speed=SHORT_STEPS)
    world = World(admission, view)
    loads = ((PREMIUM, 0.2), (STANDARD, 0.3), (FREE, flood))
    world.run(one for qos, load in loads for one in poisson(load * capacity, 120.0, 1000, 50, qos=qos))
    served = ran(world)
    assert good_share(served) > 0.97
    # Without turns they are 0.66 and 1.04 times the capacity; short prompts fit where longer ones do not.
    assert sum(one.good for one in served) > (0.74 if flood < 1 else 1.15) * capacity * 105
    for qos in (PREMIUM, STANDARD):
        assert turned_away(world, qos) < 0.06 * len(ran(world, qos=qos))
    in_vain = admission.rejected["free", Reason.PREEMPTED].requests
    assert in_vain < 0.2 * sum(admission.postponed)


def test_who_waits_is_served_once_and_nobody_is_forgotten() -> None:
    admission, view = make(classes=TIERS, speed=SHORT_STEPS, prefills=2, decodes=2)
    world = World(admission, view)
    arrivals = [one for qos in (PREMIUM, STANDARD, FREE) for one in steady(9, 30.0, qos=qos)]
    world.run(arrivals)
    assert len(world.served) + len(world.rejected) == len(arrivals)
    assert sum(admission.admitted) == len(world.served)
    assert (admission.waiting, world.postponed) == (0, [])
