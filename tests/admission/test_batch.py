"""Batch requests: let in where something is idle, and ended where an online request needs their room."""

from __future__ import annotations

import pytest
from tests.admission.world import SHORT_STEPS, TPOT_SECONDS, TTFT_SECONDS, make

from fulcrum.admission import Admission, Admit, Preempt, Reject
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import ClassKind, ClassMatch, QosClass
from fulcrum.routing import ClusterView, Flight, Incoming
from fulcrum.routing.tuning import TUNING

CLASSES = (
    QosClass(name="chat", priority=10),
    QosClass(name="batch", priority=0, kind=ClassKind.BATCH, match=ClassMatch(header="x-class", value="batch")),
)
CHAT, BATCH = 0, 1


def asks(admission: Admission, qos: int, prompt: float = 100, output: float = 100) -> Incoming:
    return admission.incoming(prompt_tokens=prompt, max_tokens=output, qos=qos)


def begin(admission: Admission, view: ClusterView, incoming: Incoming) -> Flight | None:
    """Let it in, if it may, up to its first token."""
    outcome = admission.decide(incoming, view, 0.0)
    if isinstance(outcome, Reject):
        return None
    if isinstance(outcome, Preempt):
        for victim in outcome.victims:
            view.finish(victim, 0.0)
    flight = view.start(incoming, outcome.route, 0.0)
    view.prefill_done(flight, 0.0)
    return flight


def fill(admission: Admission, view: ClusterView, qos: int) -> int:
    """Let in as many as may come."""
    count = 0
    while begin(admission, view, asks(admission, qos)) is not None:
        count += 1
    return count


def test_batch_leaves_a_part_of_the_batch_free_for_those_who_come_next() -> None:
    admission, view = make(classes=CLASSES)
    count = fill(admission, view, BATCH)
    step = view.workers.by_name["d0"].answers.step_seconds()
    assert count > 0
    assert step <= 0.01 + TUNING.estimate_share * (TPOT_SECONDS - 0.01)
    assert step > 0.9 * (0.01 + TUNING.estimate_share * (TPOT_SECONDS - 0.01))
    refused = admission.decide(asks(admission, BATCH), view, 0.0)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.NOTHING_IDLE
    assert refused.retry_after_seconds is not None


def test_as_many_online_requests_are_let_in_with_batch_as_without() -> None:
    alone = fill(*make(classes=CLASSES), CHAT)
    admission, view = make(classes=CLASSES)
    assert fill(admission, view, BATCH) > 0
    assert fill(admission, view, CHAT) == alone
    assert not view.batch, "all have made way"


def test_no_more_of_them_make_way_than_must() -> None:
    admission, view = make(classes=CLASSES)
    fill(admission, view, BATCH)
    before = list(view.batch)
    while not isinstance(outcome := admission.decide(asks(admission, CHAT), view, 0.0), Preempt):
        assert isinstance(outcome, Admit)
        view.prefill_done(view.start(asks(admission, CHAT), outcome.route, 0.0), 0.0)
    assert list(outcome.victims) == before[-1:], "one, the one that has made the least"
    assert list(view.batch) == before, "a decision changes nothing that is under way"


def test_a_prediction_leaves_the_worker_as_it_was() -> None:
    admission, view = make(classes=CLASSES)
    fill(admission, view, BATCH)
    worker = view.workers.by_name["d0"]
    before = worker.answers.decoding()
    admission.decide(asks(admission, CHAT, output=100_000), view, 0.0)
    assert worker.answers.decoding() == before


def test_batch_waits_while_an_online_prompt_is_prefilled() -> None:
    admission, view = make(classes=CLASSES, speed=SHORT_STEPS)
    outcome = admission.decide(asks(admission, CHAT, prompt=500), view, 0.0)
    assert isinstance(outcome, Admit)
    view.start(asks(admission, CHAT, prompt=500), outcome.route, 0.0)
    refused = admission.decide(asks(admission, BATCH), view, 0.01)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.NOTHING_IDLE


def test_a_long_batch_prompt_is_ended_for_one_that_comes() -> None:
    admission, view = make(classes=CLASSES, speed=SHORT_STEPS)
    long = asks(admission, BATCH, prompt=8000)
    outcome = admission.decide(long, view, 0.0)
    assert isinstance(outcome, Admit), "nothing else is there"
    flight = view.start(long, outcome.route, 0.0)
    online = admission.decide(asks(admission, CHAT), view, 0.05)
    assert isinstance(online, Preempt)
    assert online.victims == (flight,)
    assert online.route.wait_seconds == pytest.approx(0.05), "what is left of the chunk under way, and not 0.75 s"
    assert online.route.ttft_seconds < TTFT_SECONDS
    assert admission.rejected["batch", Reason.NOTHING_IDLE].requests == 1


def test_a_short_batch_prompt_is_not_ended() -> None:
    admission, view = make(classes=CLASSES, speed=SHORT_STEPS)
    short = asks(admission, BATCH, prompt=500)
    outcome = admission.decide(short, view, 0.0)
    assert isinstance(outcome, Admit)
    view.start(short, outcome.route, 0.0)
    assert isinstance(admission.decide(asks(admission, CHAT), view, 0.01), Admit)


def test_an_online_request_goes_where_online_requests_are_few() -> None:
    admission, view = make(classes=CLASSES, decodes=2)
    first = begin(admission, view, asks(admission, CHAT))
    assert first is not None
    fill(admission, view, BATCH)
    second = begin(admission, view, asks(admission, CHAT))
    assert second is not None
    assert second.decode is not first.decode


def test_nothing_is_idle_where_no_speed_is_known() -> None:
    admission, view = make(classes=CLASSES, speed=None)
    refused = admission.decide(asks(admission, BATCH), view, 0.0)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.NOTHING_IDLE


def test_batch_teaches_lengths_and_no_margin() -> None:
    admission, view = make(classes=CLASSES)
    flight = begin(admission, view, asks(admission, BATCH))
    assert flight is not None
    for _ in range(3):
        admission.learnt.learn(flight, ttft_seconds=50.0, tpot_seconds=9.0, output_tokens=77)
    assert admission.learnt.outputs.mean(BATCH, 100) == 77
    assert admission.learnt.tpot_margin.samples == 0
    assert admission.learnt.ttft_margins[BATCH].samples == 0
