"""Decisions, one at a time: a table of situations, and what must hold in all of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.admission.world import SHORT_STEPS, SPEED, TPOT_SECONDS, TTFT_SECONDS, make

from fulcrum.admission import Admission, Admit, Preempt, Reject, ThresholdLimits
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Incoming, Route, route
from fulcrum.routing.search import Search

CLASSES = (QosClass(name="high", priority=10), QosClass(name="low", priority=1))


def fill(view: ClusterView, count: int, incoming: Incoming, *, decoding: bool = False) -> None:
    """Put requests on their best paths without asking admission."""
    for _ in range(count):
        found = route(incoming, view, 0.0)
        assert isinstance(found, Route)
        flight = view.start(incoming, found, 0.0)
        if decoding:
            view.prefill_done(flight, 0.0)


def on_pair(view: ClusterView, count: int, incoming: Incoming) -> None:
    """Queue requests on the first pair of an empty view, whatever else would be better."""
    found = route(incoming, view, 0.0)
    assert isinstance(found, Route)
    for _ in range(count):
        view.start(incoming, found, 0.0)


def queued(admission: Admission, incoming: Incoming, view: ClusterView) -> bool:
    """Ask admission, and start what it lets in."""
    outcome = admission.decide(incoming, view, 0.0)
    if isinstance(outcome, Reject):
        return False
    view.start(incoming, outcome.route, 0.0)
    return True


def rejected(admission: Admission, incoming: Incoming, view: ClusterView, now: float = 0.0) -> Reject:
    outcome = admission.decide(incoming, view, now)
    assert isinstance(outcome, Reject), outcome
    return outcome


def test_nobody_is_there() -> None:
    admission, view = make(prefills=0, decodes=0)
    outcome = rejected(admission, admission.incoming(prompt_tokens=10), view)
    assert (outcome.reason, outcome.retry_after_seconds) == (Reason.NO_WORKER, None)
    view.workers.put("x", Role.DRAINING)
    assert rejected(admission, admission.incoming(prompt_tokens=10), view).reason is Reason.NO_WORKER


@pytest.mark.parametrize("policy", list(AdmissionPolicy))
def test_what_can_never_fit_is_rejected_at_once_for_ever(policy: AdmissionPolicy) -> None:
    admission, view = make(policy)
    outcome = rejected(admission, admission.incoming(prompt_tokens=10 * SPEED.kv_capacity_tokens), view)
    assert (outcome.reason, outcome.retry_after_seconds) == (Reason.NEVER_FITS, None)


@given(st.sampled_from(list(AdmissionPolicy)), st.floats(1, 200_000), st.floats(1, 100_000), st.integers(0, 1))
def test_nobody_is_rejected_by_idle_workers(policy: AdmissionPolicy, prompt: float, output: float, qos: int) -> None:
    admission, view = make(policy, CLASSES)
    assert isinstance(admission.decide(Incoming(prompt_tokens=prompt, output_tokens=output, qos=qos), view, 0.0), Admit)


@pytest.mark.parametrize(
    ("queued", "prompt_tokens", "let_in"),
    [(0, 9500, True), (0, 11_000, False), (1, 9500, False), (1, 8000, True)],
)
def test_where_nothing_is_queued_no_margin_is_asked_for(queued: int, prompt_tokens: int, let_in: bool) -> None:
    """The promise is 1 s, 10,000 tokens; with the margin 9,000. It would never be served sooner later on."""
    admission, view = make()
    admission.learnt.ttft_margins[0].factor = 1.1
    fill(view, 5, admission.incoming(prompt_tokens=1, max_tokens=1000), decoding=True)
    on_pair(view, queued, admission.incoming(prompt_tokens=10, max_tokens=10))
    outcome = admission.decide(admission.incoming(prompt_tokens=prompt_tokens, max_tokens=10), view, 0.0)
    assert isinstance(outcome, Admit) is let_in, outcome


def test_a_queue_that_is_too_long() -> None:
    admission, view = make(decodes=2)
    asked = admission.incoming(prompt_tokens=2000, max_tokens=10)
    # Both decode workers have no slack, so nothing is deflected to them, but room for one more.
    fill(view, 60, admission.incoming(prompt_tokens=1, max_tokens=1000), decoding=True)
    on_pair(view, 20, asked)
    outcome = rejected(admission, asked, view)
    assert outcome.reason is Reason.TTFT_UNREACHABLE
    assert outcome.predicted is not None
    assert outcome.predicted.wait_seconds == pytest.approx(4.0, rel=0.01)
    assert outcome.retry_after_seconds is not None
    assert 3.0 < outcome.retry_after_seconds < 4.01


def test_a_batch_that_is_too_large() -> None:
    admission, view = make()
    fill(view, 45, admission.incoming(prompt_tokens=1, max_tokens=1000), decoding=True)
    outcome = rejected(admission, admission.incoming(prompt_tokens=1, max_tokens=10), view)
    assert outcome.reason is Reason.TPOT_UNREACHABLE
    assert outcome.retry_after_seconds is not None
    assert outcome.retry_after_seconds > 0


def test_a_batch_that_will_be_smaller_at_hand_over() -> None:
    """The same batch, but prefills take long enough for many to end; whose own is long gets no more of that room."""
    admission, view = make(prefills=1, decodes=1)
    fill(view, 40, admission.incoming(prompt_tokens=1, max_tokens=12), decoding=True)
    requests = [admission.incoming(prompt_tokens=length, max_tokens=10) for length in (1, 1000, 6000)]
    view.usual_ttft_seconds = 0.0
    assert all(isinstance(admission.decide(one, view, 0.0), Reject) for one in requests)
    view.usual_ttft_seconds = 1.0
    assert all(isinstance(admission.decide(one, view, 0.0), Admit) for one in requests)


def test_what_is_in_prefill_counts_for_the_batch() -> None:
    admission, view = make()
    on_pair(view, 45, admission.incoming(prompt_tokens=1, max_tokens=1000))
    assert rejected(admission, admission.incoming(prompt_tokens=1), view).reason is Reason.TPOT_UNREACHABLE


def test_short_answers_in_prefill_are_not_all_there_at_once() -> None:
    """They come one after the other, and are gone again after a few steps."""
    admission, view = make()
    on_pair(view, 45, Incoming(prompt_tokens=100, output_tokens=2))
    view.usual_ttft_seconds = 0.45
    assert isinstance(admission.decide(Incoming(prompt_tokens=1, output_tokens=2), view, 0.0), Admit)


def test_an_answer_of_one_token_is_never_too_slow() -> None:
    admission, view = make()
    fill(view, 60, Incoming(prompt_tokens=1, output_tokens=1000), decoding=True)
    one, two = (Incoming(prompt_tokens=1, output_tokens=tokens) for tokens in (1.0, 2.0))
    assert rejected(admission, two, view).reason is Reason.TPOT_UNREACHABLE
    assert isinstance(admission.decide(one, view, 0.0), Admit)


@pytest.mark.parametrize(("output_tokens", "let_in"), [(28_000, True), (30_000, False)])
def test_an_answer_that_would_outgrow_the_cache_is_turned_away(output_tokens: int, let_in: bool) -> None:
    """A cache of 200,000 tokens, which answers may outgrow by 5 %; three prompts of 60,000 hold most of it."""
    admission, view = make()
    fill(view, 3, Incoming(prompt_tokens=60_000, output_tokens=2000), decoding=True)
    outcome = admission.decide(Incoming(prompt_tokens=5000, output_tokens=output_tokens), view, 0.0)
    assert isinstance(outcome, Admit) is let_in
    if isinstance(outcome, Reject):
        assert outcome.reason is Reason.KV_EXHAUSTED


@pytest.mark.parametrize("workers", [2, 3])
def test_where_answers_outgrew_what_was_expected_the_next_one_goes_elsewhere(workers: int) -> None:
    """What was promised on all but the last is less than on that one, and has filled their caches since."""
    admission, view = make(decodes=workers)
    names = [f"d{number}" for number in range(workers)]
    for name in names:
        last = name == names[-1]
        for _ in range(12 if last else 10):
            incoming = Incoming(prompt_tokens=1000, output_tokens=100, exclude=frozenset(names) - {name})
            found = route(incoming, view, 400.0 * last)
            assert isinstance(found, Route)
            view.prefill_done(view.start(incoming, found, 400.0 * last), 400.0 * last)
    outcome = admission.decide(Incoming(prompt_tokens=1000, output_tokens=5000, two_legs=True), view, 401.0)
    assert isinstance(outcome, Admit), outcome
    assert outcome.route.decode.name == names[-1]


@pytest.mark.parametrize(("life_tokens", "let_in"), [(100, True), (30_000, False)])
def test_a_prompt_waits_for_memory_within_its_promise(life_tokens: int, let_in: bool) -> None:
    """Three contexts of 60,000 tokens, a prompt of 25,000 that takes 2.5 s to prefill, and a cache of 200,000."""
    admission, view = make()
    view.ttft_seconds = admission.learnt.ttft_seconds = 5.0
    fill(view, 3, Incoming(prompt_tokens=60_000, output_tokens=life_tokens), decoding=True)
    view.usual_ttft_seconds = 0.0
    outcome = admission.decide(Incoming(prompt_tokens=25_000, output_tokens=20), view, 0.0)
    assert isinstance(outcome, Admit) is let_in
    if isinstance(outcome, Admit):
        assert outcome.route.hand_over.slot_seconds > 0
        assert outcome.route.ttft_seconds > 2.5 + outcome.route.hand_over.slot_seconds
    else:
        assert isinstance(outcome, Reject)
        assert outcome.reason is Reason.KV_EXHAUSTED


def test_a_rejection_says_in_numbers_what_was_predicted() -> None:
    admission, view = make()
    on_pair(view, 9, admission.incoming(prompt_tokens=1000, max_tokens=10))
    outcome = rejected(admission, admission.incoming(prompt_tokens=3000, max_tokens=10), view)
    found = outcome.predicted
    assert found is not None
    assert outcome.promised_seconds == TTFT_SECONDS
    parts = found.wait_seconds + found.hand_over.slot_seconds, found.own_seconds
    assert outcome.numbers == (
        f"predicted TTFT {found.ttft_seconds:.2g} s (queue {parts[0]:.2g}, prefill {parts[1]:.2g}, "
        f"hand-over {found.ttft_seconds - parts[0] - parts[1]:.2g}) against 1 s promised"
    )
    admission, view = make()
    fill(view, 45, admission.incoming(prompt_tokens=1, max_tokens=1000), decoding=True)
    slow = rejected(admission, admission.incoming(prompt_tokens=1, max_tokens=10), view)
    assert slow.reason is Reason.TPOT_UNREACHABLE
    assert slow.numbers.endswith("against 50 ms promised")


def test_header_promises_only_tighten() -> None:
    admission, view = make()
    loose = admission.incoming(prompt_tokens=10, ttft_seconds=99.0, tpot_seconds=9.0)
    assert (loose.ttft_seconds, loose.tpot_seconds) == (float("inf"), float("inf"))
    fill(view, 20, admission.incoming(prompt_tokens=10, max_tokens=500), decoding=True)
    assert isinstance(admission.decide(loose, view, 0.0), Admit)
    tight = admission.incoming(prompt_tokens=10, tpot_seconds=0.02)
    assert rejected(admission, tight, view).reason is Reason.TPOT_UNREACHABLE
    late = admission.incoming(prompt_tokens=5000, ttft_seconds=0.2)
    assert rejected(admission, late, view).reason is Reason.TTFT_UNREACHABLE


def test_a_tight_promise_once_given_is_kept_from_later_requests() -> None:
    admission, view = make()
    tight = admission.incoming(prompt_tokens=10, max_tokens=500, tpot_seconds=0.015)
    fill(view, 1, tight, decoding=True)
    admitted = 0
    while isinstance(
        outcome := admission.decide(admission.incoming(prompt_tokens=10, max_tokens=500), view, 0.0), Admit
    ):
        view.prefill_done(view.start(admission.incoming(prompt_tokens=10, max_tokens=500), outcome.route, 0.0), 0.0)
        admitted += 1
    assert admitted <= 4
    assert isinstance(outcome, Reject)
    assert outcome.reason is Reason.TPOT_UNREACHABLE


def test_threshold_and_unknown_speed_go_by_queue_batch_and_cache() -> None:
    for policy, speed in ((AdmissionPolicy.THRESHOLD, SPEED), (AdmissionPolicy.PREDICTIVE, None)):
        admission, view = make(policy, prefills=0, decodes=0, speed=speed)
        view.workers.put("m0", Role.MIXED, pool="pool")
        long = admission.incoming(prompt_tokens=4000, max_tokens=10)
        on_pair(view, 7, long)
        assert isinstance(admission.decide(long, view, 0.0), Admit)
        on_pair(view, 1, long)
        outcome = rejected(admission, long, view)
        assert outcome.reason is Reason.QUEUE_FULL
        assert outcome.retry_after_seconds is not None
        short = admission.incoming(prompt_tokens=1, max_tokens=10)
        on_pair(view, 247, short)
        assert isinstance(admission.decide(short, view, 0.0), Admit)
        on_pair(view, 1, short)
        assert rejected(admission, short, view).reason is Reason.QUEUE_FULL


def test_off_admits_everything() -> None:
    admission, view = make(AdmissionPolicy.OFF)
    for _ in range(300):
        outcome = admission.decide(admission.incoming(prompt_tokens=5000), view, 0.0)
        assert isinstance(outcome, Admit)
        view.start(admission.incoming(prompt_tokens=5000), outcome.route, 0.0)


def test_rejections_are_counted_by_class_and_reason() -> None:
    admission, view = make(classes=CLASSES)
    fill(view, 60, admission.incoming(prompt_tokens=1, max_tokens=1000), decoding=True)
    for _ in range(3):
        rejected(admission, admission.incoming(prompt_tokens=100, max_tokens=7, qos=1), view)
    tally = admission.rejected["low", Reason.TPOT_UNREACHABLE]
    assert (tally.requests, tally.prompt_tokens, tally.output_tokens) == (3, 300, 21)
    assert admission.admitted == [0, 0]


@given(st.integers(8, 60), st.floats(100, 9000))
def test_after_retry_after_the_queue_lets_it_in(queued: int, prompt: float) -> None:
    """The queue drains as predicted, nothing else comes."""
    admission, view = make(decodes=2)
    fill(view, 76, admission.incoming(prompt_tokens=1, max_tokens=100_000), decoding=True)
    before = list(view.workers.by_name["p0"].prompts.legs)
    view.workers.put("d9", Role.DECODE, pool="pool")
    on_pair(view, queued, admission.incoming(prompt_tokens=1000, max_tokens=1))
    view.workers.remove("d9")
    view.workers.put("d8", Role.DECODE, pool="slow")
    # A decode worker that can decode but not prefill in time.
    slow = SpeedCoefficients(prefill_a=9, prefill_b=1, prefill_c=0, decode_a=0.01, decode_b=1e-4, decode_c=0)
    view.workers.set_speed("slow", WorkerSpeed(coefficients=slow, kv_capacity_tokens=1_000_000))
    asked = admission.incoming(prompt_tokens=prompt, max_tokens=10)
    outcome = admission.decide(asked, view, 0.0)
    if isinstance(outcome, Admit):
        return
    assert isinstance(outcome, Reject)
    assert outcome.reason is Reason.TTFT_UNREACHABLE
    assert outcome.retry_after_seconds is not None
    assert not before
    ended = 0.0
    for leg in list(view.workers.by_name["p0"].prompts.legs):
        ended += leg.work_seconds
        flight = view.prefilling[leg]
        if ended <= outcome.retry_after_seconds:
            view.prefill_done(flight, ended)
            view.finish(flight, ended)
    if outcome.predicted is not None and outcome.predicted.ttft_seconds - outcome.predicted.wait_seconds < 0.9:
        soon = outcome.retry_after_seconds - 0.02
        assert isinstance(admission.decide(asked, view, outcome.retry_after_seconds + 1e-6), Admit)
        assert soon < ended


loads = st.tuples(st.integers(0, 12), st.integers(0, 50), st.integers(0, 1))


@given(
    loads, st.floats(1, 8000), st.floats(1, 500), st.lists(st.tuples(st.integers(0, 1), st.integers(1, 30)), max_size=4)
)
def test_a_higher_priority_is_never_worse(
    load: tuple[int, int, int], prompt: float, output: float, asked_before: list[tuple[int, int]]
) -> None:
    """The same class, the same state; only its priority is higher."""
    outcomes = []
    for priority in (1, 5, 20):
        classes = (QosClass(name="mine", priority=priority), QosClass(name="other", priority=5, reserved=0.3))
        admission, view = make(classes=classes)
        queued, running, qos = load
        # Before anybody is there whom they would hold up: none of them is started.
        for other, times in asked_before:
            for _ in range(times):
                admission.decide(Incoming(prompt_tokens=800, output_tokens=200, qos=other), view, 0.0)
        fill(view, running, Incoming(prompt_tokens=100, output_tokens=300, qos=qos), decoding=True)
        fill(view, queued, Incoming(prompt_tokens=500, output_tokens=300, qos=1 - qos))
        mine = Incoming(prompt_tokens=prompt, output_tokens=output, qos=0)
        outcomes.append(not isinstance(admission.decide(mine, view, 0.0), Reject))
    assert outcomes == sorted(outcomes)


def test_who_would_be_overtaken_and_late_makes_way() -> None:
    admission, view = make(classes=CLASSES, speed=SHORT_STEPS)
    admission.learnt.ttft_margins[1].factor = 1.1
    low = admission.incoming(prompt_tokens=2000, max_tokens=10, qos=1)
    for _ in range(4):
        assert queued(admission, low, view)
    assert rejected(admission, low, view).reason is Reason.TTFT_UNREACHABLE
    legs = list(view.workers.by_name["p0"].prompts.legs)
    high = admission.incoming(prompt_tokens=1000, max_tokens=1, qos=0)
    outcome = admission.decide(high, view, 0.0)
    assert isinstance(outcome, Preempt)
    assert outcome.route.wait_seconds == pytest.approx(0.2), "only what has begun is before it"
    assert [victim.load for victim in outcome.victims] == [legs[3]], "the others are later by 0.1 s, and not late"
    assert [leg.ttft_seconds for leg in legs[1:3]] == pytest.approx([0.51, 0.71], abs=0.01)
    for victim in outcome.victims:
        view.finish(victim, 0.0)
    view.start(high, outcome.route, 0.0)
    assert view.workers.by_name["p0"].prompts.own_seconds == pytest.approx(0.7)
    assert admission.rejected["low", Reason.PREEMPTED].requests == 1


def test_what_is_overtaken_does_not_count_as_a_queue() -> None:
    """Without any prediction, too."""
    limits = ThresholdLimits(queued_prompt_tokens=3000)
    admission = Admission(AdmissionPolicy.THRESHOLD, CLASSES, limits=limits)
    view = admission.new_view()
    view.workers.set_speed("pool", SHORT_STEPS)
    view.workers.put("p0", Role.PREFILL, pool="pool")
    view.workers.put("d0", Role.DECODE, pool="pool")
    low = admission.incoming(prompt_tokens=1000, max_tokens=10, qos=1)
    for _ in range(3):
        assert queued(admission, low, view)
    assert rejected(admission, low, view).reason is Reason.QUEUE_FULL
    high = admission.incoming(prompt_tokens=1000, max_tokens=10, qos=0)
    for _ in range(3):
        assert queued(admission, high, view)
    assert rejected(admission, high, view).reason is Reason.QUEUE_FULL, "of its own class"


def test_nobody_makes_way_whose_class_would_have_less_than_is_reserved_for_it() -> None:
    admission, view = make(
        classes=(QosClass(name="high", priority=10), QosClass(name="low", priority=1, reserved=0.9)), speed=SHORT_STEPS
    )
    low = admission.incoming(prompt_tokens=2000, max_tokens=10, qos=1)
    for _ in range(4):
        assert queued(admission, low, view)
    high = admission.incoming(prompt_tokens=2000, max_tokens=1, qos=0)
    assert rejected(admission, high, view).reason is Reason.CLASS_SHARE


@pytest.mark.parametrize(("ahead", "let_in"), [("high", False), ("middle", True), ("low", True)])
def test_what_has_begun_of_lower_classes_is_not_counted_against_the_share(ahead: str, let_in: bool) -> None:
    """Room is kept for `middle`, which has a reserve; what is in the step was let in as nobody else was there."""
    classes = (
        QosClass(name="high", priority=10), QosClass(name="middle", priority=5, reserved=0.3),
        QosClass(name="low", priority=1),
    )  # fmt: skip
    admission, view = make(classes=classes)
    admission.learnt.ttft_margins[0].factor = 1.1
    middle = admission.incoming(prompt_tokens=2000, max_tokens=10, qos=1)
    for _ in range(3):
        admission.decide(middle, view, 0.0)
    for qos in (admission.classes.names.index(ahead), 0, 0, 0):
        on_pair(view, 1, admission.incoming(prompt_tokens=1500, max_tokens=10, qos=qos))
    high = admission.incoming(prompt_tokens=1000, max_tokens=10, qos=0)
    outcome = admission.decide(high, view, 0.0)
    assert isinstance(outcome, Admit) is let_in, outcome
    if isinstance(outcome, Reject):
        assert outcome.reason is Reason.CLASS_SHARE


FEW_PLACES = replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, decode_b=0.0132))
"""Three answers at once keep the pace."""


def served_at_once(admission: Admission, view: ClusterView, qos: int) -> int:
    """Let in as many requests of a class as decode at once, their prompts done; none ends."""
    incoming = admission.incoming(prompt_tokens=10, max_tokens=100, qos=qos)
    for count in range(100):
        outcome = admission.decide(incoming, view, 0.0)
        if isinstance(outcome, Reject):
            return count
        view.prefill_done(view.start(incoming, outcome.route, 0.0), 0.0)
    raise AssertionError("more than all places")


@pytest.mark.parametrize("decodes", [1, 2, 4])
def test_a_place_for_a_class_is_kept_on_some_worker_and_not_on_each(decodes: int) -> None:
    admission, view = make(classes=CLASSES, decodes=decodes, speed=FEW_PLACES)
    high = admission.incoming(prompt_tokens=10, max_tokens=1, qos=0)
    admitted = admission.decide(high, view, 0.0)
    assert isinstance(admitted, Admit)
    assert served_at_once(admission, view, qos=1) == 3 * decodes - 1
    assert served_at_once(admission, view, qos=0) == 1
    assert served_at_once(admission, view, qos=1) == 0


def test_what_a_class_asks_of_every_worker_is_kept_on_every_one() -> None:
    admission, view = make(classes=CLASSES, decodes=4, speed=FEW_PLACES)
    high = admission.incoming(prompt_tokens=10, max_tokens=2000, qos=0)
    for _ in range(4):
        admission.decide(high, view, 0.0)
    assert served_at_once(admission, view, qos=1) <= 4 * 2
    assert served_at_once(admission, view, qos=0) >= 4


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_a_place_that_a_margin_takes_is_not_kept_for_a_class(factor: float) -> None:
    """With a margin of a quarter, two answers at once keep the pace instead of three."""
    admission, view = make(classes=CLASSES, decodes=4, speed=FEW_PLACES)
    admission.learnt.tpot_margin.factor = factor
    high = admission.incoming(prompt_tokens=10, max_tokens=1, qos=0)
    assert isinstance(admission.decide(high, view, 0.0), Admit)
    assert served_at_once(admission, view, qos=1) > 0
    assert served_at_once(admission, view, qos=0) >= 1


def test_a_place_on_a_worker_that_fails_is_not_kept_for_a_class() -> None:
    admission, view = make(classes=CLASSES, decodes=4, speed=FEW_PLACES)
    for _ in range(10):
        view.workers.failed(view.workers.by_name["d3"], 0.0)
    assert not view.workers.by_name["d3"].health.breaker.available
    high = admission.incoming(prompt_tokens=10, max_tokens=1, qos=0)
    assert isinstance(admission.decide(high, view, 0.0), Admit)
    assert served_at_once(admission, view, qos=1) == 3 * 3 - 1
    assert served_at_once(admission, view, qos=0) == 1


def test_promises() -> None:
    admission, view = make()
    assert (view.ttft_seconds, view.tpot_seconds) == (TTFT_SECONDS, TPOT_SECONDS)
    assert view.class_names == admission.classes.names


@pytest.mark.parametrize(("name", "role"), [("d0", Role.PREFILL), ("p0", Role.DECODE)])
def test_nothing_is_learned_from_a_worker_that_flipped_meanwhile(name: str, role: Role) -> None:
    admission, view = make(prefills=2, decodes=2)
    incoming = admission.incoming(prompt_tokens=1000)
    for _ in range(20):
        outcome = admission.decide(incoming, view, 0.0)
        assert isinstance(outcome, Admit)
        flight = view.start(incoming, outcome.route, 0.0)
        view.workers.put(name, role, pool="pool")
        for worker, late in ((flight.prefill, "ttft_seconds"), (flight.decode, "tpot_seconds")):
            if worker.name == name:
                admission.learnt.learn(flight, **{late: 100.0})
        view.workers.put(name, Role.DECODE if role is Role.PREFILL else Role.PREFILL, pool="pool")
        view.finish(flight, 0.0)
    assert admission.learnt.ttft_margins[0].samples == admission.learnt.tpot_margin.samples == 0


def test_late_requests_of_one_class_turn_no_other_away() -> None:
    """The lower class is overtaken, so what is said of its first tokens says nothing of the higher one's."""
    admission, view = make(classes=CLASSES, prefills=2)
    low = admission.incoming(prompt_tokens=9000, qos=1)
    for _ in range(60):
        outcome = admission.decide(low, view, 0.0)
        assert isinstance(outcome, Admit)
        flight = view.start(low, outcome.route, 0.0)
        view.finish(flight, 0.0)
        admission.learnt.learn(flight, ttft_seconds=1.5 * TTFT_SECONDS)
    assert admission.learnt.ttft_margins[0].factor == 1.0 < admission.learnt.ttft_margins[1].factor
    on_pair(view, 1, admission.incoming(prompt_tokens=10, qos=0))
    assert isinstance(admission.decide(admission.incoming(prompt_tokens=9000, qos=0), view, 0.0), Admit)


@pytest.mark.parametrize(("ahead", "let_in"), [(0, False), (9, True)])
def test_a_prompt_on_a_decode_worker_is_over_before_a_later_request_decodes_there(ahead: int, let_in: bool) -> None:
    """It takes 0.5 s of the steps of an answer of four tokens, which has 0.2 s for them; the queue takes 0.9 s."""
    _, view = make()
    whole = Incoming(prompt_tokens=5000, output_tokens=1, whole=True)
    prefill, decode = view.workers.by_name["p0"], view.workers.by_name["d0"]
    search = Search(whole, view, 0.0)
    view.start(whole, search.one_leg(search.prefill_on(decode)), 0.0)
    for _ in range(ahead):
        view.start(
            Incoming(prompt_tokens=1000, output_tokens=1), search.two_legs(search.prefill_on(prefill), decode), 0.0
        )
    search = Search(Incoming(prompt_tokens=100, output_tokens=4), view, 0.0)
    pair = search.two_legs(search.prefill_on(prefill), decode)
    assert (pair.slowest_seconds <= TPOT_SECONDS) is let_in


@pytest.mark.parametrize(("measured", "learned"), [(0.0105, 1), (0.045, 0)])
def test_a_prediction_below_the_shortest_step_that_was_measured_since_tells_nothing(
    measured: float, learned: int
) -> None:
    """The answer was late because its worker's speed had been wrong, which has been put right meanwhile."""
    admission, view = make()
    outcome = admission.decide(admission.incoming(prompt_tokens=100), view, 0.0)
    assert isinstance(outcome, Admit)
    flight = view.start(admission.incoming(prompt_tokens=100), outcome.route, 0.0)
    flight.step_limit_seconds = 0.0
    view.workers.set_speed(
        "pool", replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, decode_a=measured))
    )
    before = admission.learnt.tpot_margin.factor
    admission.learnt.learn(flight, tpot_seconds=1.5 * TPOT_SECONDS)
    assert admission.learnt.tpot_margin.samples == learned
    assert (admission.learnt.tpot_margin.factor > before) is bool(learned)


@pytest.mark.parametrize("policy", list(AdmissionPolicy))
@given(measured=st.floats(0.0, 1.0), ttft_seconds=st.floats(1e-4, 100.0), tpot_seconds=st.floats(1e-4, 2.0))
def test_learning_bears_a_worker_that_was_measured_again_meanwhile(
    policy: AdmissionPolicy, measured: float, ttft_seconds: float, tpot_seconds: float
) -> None:
    """What was predicted of a request may lie far below its worker's shortest step when it has been served."""
    admission, view = make(policy)
    incoming = admission.incoming(prompt_tokens=100)
    outcome = admission.decide(incoming, view, 0.0)
    assert isinstance(outcome, Admit)
    flight = view.start(incoming, outcome.route, 0.0)
    view.workers.set_speed(
        "pool", replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, decode_a=measured))
    )
    admission.learnt.learn(flight, ttft_seconds=ttft_seconds, tpot_seconds=tpot_seconds, output_tokens=10)
    assert 1.0 <= admission.learnt.tpot_margin.factor < float("inf")
