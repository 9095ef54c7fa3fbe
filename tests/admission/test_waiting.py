"""The admission queue: who waits, in which order requests are let in, and how each of them ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.admission.world import SPEED, TTFT_SECONDS, make

from fulcrum.admission import ANYONE, Admission, Admit, Client, Preempt, Reject, RequestQueue, Waiting
from fulcrum.admission.waiting import EXPIRED, FULL, LEFT, SERVED
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, ClassMatch, QosClass
from fulcrum.routing import ClusterView, Flight, Incoming, Route, route

CLASSES = (
    QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
    QosClass(name="rest", priority=1),
)
GOLD, REST = 0, 1
ONE_AT_A_TIME = replace(SPEED, max_batch=1)
HOUR = 3600.0


class Door:
    """A queue before one worker that decodes one request at a time."""

    def __init__(
        self, *, max_wait_seconds: float = 60.0, max_requests: int = 100, classes: tuple[QosClass, ...] = CLASSES
    ) -> None:
        self.admission, self.view = make(AdmissionPolicy.THRESHOLD, classes, prefills=0, decodes=0, speed=ONE_AT_A_TIME)
        self.view.workers.put("m", Role.MIXED, pool="pool")
        self.queue = RequestQueue(self.admission, max_wait_seconds=max_wait_seconds, max_requests=max_requests)
        self.now = 0.0
        self.running: list[Flight] = []
        self.let_in: list[str] = []
        self.refused: list[str] = []
        self.clients: dict[Waiting, str] = {}

    def ask(self, client: Client = ANYONE, *, qos: int = REST, ttft_seconds: float = inf) -> Waiting | None:
        """Whether it waits: what; None: it is let in or refused."""
        self.settle()
        return self.flood(client, qos=qos, ttft_seconds=ttft_seconds)

    def flood(self, client: Client, *, qos: int = REST, ttft_seconds: float = inf) -> Waiting | None:
        """As `ask`, right after another one."""
        incoming = self.admission.incoming(prompt_tokens=100, max_tokens=10, qos=qos, ttft_seconds=ttft_seconds)
        decided = self.admission.consider(incoming, self.view, self.now)
        waiting = self.queue.arrive(incoming, client, decided, self.now)
        if waiting is None:
            self._take(client.name, incoming, decided)
        else:
            self.clients[waiting] = client.name
        return waiting

    def settle(self) -> None:
        for waiting, decided in self.queue.settle(self.view, self.now):
            self._take(self.clients.pop(waiting), waiting.at(self.now), decided)

    def _take(self, client: str, incoming: Incoming, decided: Admit | Preempt | Reject) -> None:
        if isinstance(decided, Reject):
            self.refused.append(client)
        else:
            self.running.append(self.view.start(incoming, decided.route, self.now))
            self.let_in.append(client)

    def next(self) -> None:
        """What runs ends, and the next one comes in."""
        self.view.finish(self.running.pop(), self.now)
        self.settle()

    def outcomes(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for (_, outcome), count in self.queue.outcomes.items():
            found[outcome] += count
        return {name: count for name, count in found.items() if count}


def test_it_waits_until_there_is_room() -> None:
    door = Door()
    door.ask()
    assert door.ask() is not None
    door.settle()
    assert (len(door.let_in), len(door.queue), door.queue.waiting) == (1, 1, [0, 1])
    door.now = 7.0
    door.next()
    assert (len(door.let_in), len(door.queue), door.outcomes()) == (2, 0, {SERVED: 1})
    assert door.running[0].waited_seconds == 7.0
    assert door.refused == []


def test_higher_classes_first_then_the_earliest_deadline() -> None:
    door = Door()
    door.ask()
    for name, qos, ttft_seconds in (("late", REST, inf), ("soon", REST, 0.5), ("gold", GOLD, inf)):
        # One key, so that fairness says nothing: its name here only tells the requests apart.
        waiting = door.ask(ANYONE, qos=qos, ttft_seconds=ttft_seconds)
        assert waiting is not None
        door.clients[waiting] = name
    for _ in range(3):
        door.next()
    assert door.let_in == ["", "gold", "soon", "late"]


def test_a_client_with_10_000_requests_leaves_the_others_their_share() -> None:
    door, flood, other = Door(max_requests=100), Client("flood"), Client("other")
    for _ in range(10_000):
        door.flood(flood)
    assert (len(door.queue), door.outcomes()) == (100, {FULL: 9_899})
    mine = [door.ask(other) for _ in range(60)]
    assert all(mine[:50]), "half of the places are for it, though all were taken"
    door.settle()
    assert (len(door.queue), door.outcomes()[FULL]) == (100, 9_899 + 60)
    for _ in range(20):
        door.next()
    assert Counter(door.let_in[1:]) == {"flood": 10, "other": 10}
    door.ask(flood)  # there is room again
    assert len(door.queue) == 81


def test_weights_divide_what_is_let_in() -> None:
    door = Door(max_requests=200)
    clients = [Client("one"), Client("three", 3.0)]
    door.ask()
    for client in clients * 60:
        door.ask(client)
    for _ in range(40):
        door.next()
    assert Counter(door.let_in[1:]) == {"one": 10, "three": 30}


def test_a_client_that_asks_again_and_again_gains_nothing_by_it() -> None:
    door, patient, hasty = Door(), Client("patient", 3.0), Client("hasty", 1.0)
    door.ask()
    for _ in range(60):
        door.ask(patient)
    for _ in range(40):  # never more than one of it waits
        if "hasty" not in door.clients.values():
            door.ask(hasty)
        door.next()
    assert 9 <= Counter(door.let_in)["hasty"] <= 11


def test_a_higher_class_takes_a_place_of_a_full_queue() -> None:
    door = Door(max_requests=2)
    door.ask()
    for name in ("much", "much"):
        door.ask(Client(name))
    assert door.ask(Client("gold"), qos=GOLD) is not None
    assert door.ask(Client("more")) is None, "one of each waits: no key has more than its share"
    assert (sorted(door.refused), door.queue.waiting) == (["more", "much"], [1, 1])


@pytest.mark.parametrize("max_wait_seconds", [0.0, -1.0])
def test_without_time_none_waits(max_wait_seconds: float) -> None:
    door = Door(max_wait_seconds=max_wait_seconds)
    door.ask()
    assert door.ask() is None
    assert (door.refused, len(door.queue), door.outcomes()) == ([""], 0, {})


def test_it_is_refused_when_it_has_waited_for_as_long_as_it_may() -> None:
    door = Door(max_wait_seconds=2.0)
    door.ask()
    waiting = door.ask()
    assert waiting is not None
    door.now = 1.9
    door.settle()
    assert len(door.queue) == 1
    door.now = 2.0
    door.settle()
    assert (len(door.queue), door.outcomes(), door.refused) == (0, {EXPIRED: 1}, [""])
    assert waiting.rejection.reason is Reason.QUEUE_FULL


@pytest.mark.parametrize("jump_seconds", [HOUR, -HOUR, 1e9, -1e9])
def test_a_clock_that_jumps_loses_none(jump_seconds: float) -> None:
    door = Door()
    door.now = 5.0
    door.ask()
    for number in range(10):
        door.ask(Client(str(number)))
    door.now += jump_seconds
    door.settle()
    assert len(door.refused) + len(door.queue) == 10
    assert len(door.queue) == (0 if jump_seconds > 0 else 10)
    door.ask()  # the next one is not hurt by it
    door.next()
    assert len(door.let_in) == 2
    assert all(flight.waited_seconds >= 0 for flight in door.running)


def test_a_client_that_left_is_gone_at_once() -> None:
    door = Door(max_requests=1)
    door.ask()
    waiting = door.ask()
    assert waiting is not None
    door.queue.leave(waiting)
    assert (len(door.queue), door.queue.waiting, door.outcomes()) == (0, [0, 0], {LEFT: 1})
    pushed = door.ask()
    assert pushed is not None
    door.ask(qos=GOLD)
    door.queue.leave(pushed)  # it had lost its place in the same moment
    door.settle()
    assert (len(door.queue), door.outcomes(), door.refused) == (1, {LEFT: 2}, [])


def predicted(busy_seconds: float) -> tuple[Admission, ClusterView, RequestQueue]:
    """A pair of workers, Predictive: the prefill worker is busy for so long."""
    admission, view = make(classes=())
    incoming = admission.incoming(prompt_tokens=1000, max_tokens=2)
    for _ in range(int(busy_seconds / 0.1)):
        found = route(incoming, view, 0.0)
        assert isinstance(found, Route)
        view.start(incoming, found, 0.0)
    return admission, view, RequestQueue(admission, max_wait_seconds=HOUR, max_requests=9)


def test_a_late_first_token_is_not_waited_for() -> None:
    admission, view, queue = predicted(busy_seconds=5.0)
    incoming = admission.incoming(prompt_tokens=1000, max_tokens=2)
    decided = admission.consider(incoming, view, 0.0)
    assert isinstance(decided, Reject)
    assert queue.arrive(incoming, ANYONE, decided, 0.0) is None
    assert (decided.reason, len(queue)) == (Reason.TTFT_UNREACHABLE, 0)


def test_it_is_refused_as_soon_as_its_promise_cannot_be_kept() -> None:
    """A pace that is too slow is waited for; the prefill takes 0.1 s, so after 0.9 s there is no use in waiting."""
    admission, view, queue = predicted(busy_seconds=0.0)
    filler = admission.incoming(prompt_tokens=10, max_tokens=100_000)
    while isinstance(decided := admission.consider(filler, view, 0.0), Admit):
        view.start(filler, decided.route, 0.0)
    incoming = admission.incoming(prompt_tokens=1000, max_tokens=200)
    waiting = queue.arrive(incoming, ANYONE, admission.consider(incoming, view, 0.0), 0.0)
    assert waiting is not None
    assert waiting.rejection.reason is Reason.TPOT_UNREACHABLE
    assert 0.5 * TTFT_SECONDS < waiting.until <= 0.91 * TTFT_SECONDS
    assert list(queue.settle(view, waiting.until - 0.01)) == []
    ((ended, rejection),) = queue.settle(view, 0.95 * TTFT_SECONDS)
    assert (ended, isinstance(rejection, Reject)) == (waiting, True)


def test_without_a_worker_it_waits_for_one() -> None:
    admission, view = make(AdmissionPolicy.OFF, prefills=0, decodes=0)
    queue = RequestQueue(admission, max_wait_seconds=HOUR, max_requests=9)
    incoming = admission.incoming(prompt_tokens=10)
    waiting = queue.arrive(incoming, ANYONE, admission.consider(incoming, view, 0.0), 0.0)
    assert waiting is not None
    view.workers.put("m", Role.MIXED, pool="pool")
    ((ended, decided),) = queue.settle(view, 100.0)
    assert ended is waiting
    assert isinstance(decided, Admit)


@pytest.mark.parametrize("waited_seconds", [0.5 * TTFT_SECONDS, 600.0])
def test_the_wait_is_not_learnt_as_latency(waited_seconds: float) -> None:
    learnt = []
    for waited in (0.0, waited_seconds):
        admission, view = make(classes=())
        incoming = admission.incoming(prompt_tokens=1000, max_tokens=2)
        found = route(incoming, view, 0.0)
        assert isinstance(found, Route)
        flight = view.start(msgspec.structs.replace(incoming, waited_seconds=waited), found, 0.0)
        took_seconds = waited + 1.5 * found.ttft_seconds
        admission.learnt.learn(flight, ttft_seconds=took_seconds)
        flight.served(ttft_seconds=took_seconds, tpot_seconds=None)
        margin = admission.learnt.ttft_margins[0]
        learnt.append((margin.error, flight.prefill.health.record.ratio))
        assert margin.samples == (waited < TTFT_SECONDS), "without a promise left there is no margin on it"
        assert margin.factor == 1.0
    assert learnt[1][1] == pytest.approx(learnt[0][1])
    if waited_seconds < TTFT_SECONDS:
        assert learnt[1][0] == pytest.approx(learnt[0][0])


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "next", "leave", "pass"]), st.integers(0, 3), st.floats(0.0, 3.0)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_each_request_ends_once(actions: list[tuple[str, int, float]]) -> None:
    door = Door(max_wait_seconds=2.0, max_requests=3)
    door.ask()
    asked, left = 1, 0
    for action, number, seconds in actions:
        if action == "ask":
            door.ask(Client(str(number), 1.0 + number), qos=number % 2)
            asked += 1
        elif action == "next" and door.running:
            door.next()
        elif action == "leave" and door.clients:
            waiting = list(door.clients)[number % len(door.clients)]
            del door.clients[waiting]
            door.queue.leave(waiting)
            left += 1
        else:
            door.now += seconds
            door.settle()
        assert len(door.queue) <= 3
        assert sum(door.queue.waiting) == len(door.queue)
    door.now += HOUR
    door.settle()
    assert (len(door.queue), door.clients) == (0, {})
    assert len(door.let_in) + len(door.refused) + left == asked
