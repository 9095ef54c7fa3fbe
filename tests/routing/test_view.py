"""The book: O(1) sums equal what a loop over all requests would give, and nothing is left over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.cluster import SPEED, ask, cluster, find, report, send

from fulcrum.api.names import Role
from fulcrum.routing import AffinityMemory, ClusterView, Flight
from fulcrum.routing.flight import DECODING, PREFILLING
from fulcrum.routing.latency import hand_over
from fulcrum.routing.path import HandOver

events = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "done", "done", "finish", "role"]),
        st.integers(0, 30),
        st.floats(0, 0.5),
        st.floats(1, 5000),
        st.floats(1, 500),
    ),
    max_size=60,
)


def check(view: ClusterView, flights: list[Flight]) -> None:
    for worker in view.workers.by_name.values():
        legs = [f for f in flights if f.phase == PREFILLING and f.prefill is worker]
        running = [f for f in flights if f.phase == DECODING and f.decode is worker]
        pending = [f for f in flights if f.phase == PREFILLING and f.decode is worker]
        assert list(worker.prompts.legs) == [f.load for f in legs]
        assert worker.prompts.own_seconds == pytest.approx(sum(f.load.work_seconds for f in legs), abs=1e-6)
        assert worker.prompts.queued_tokens == pytest.approx(sum(f.load.prompt_tokens for f in legs), abs=1e-6)
        assert (worker.answers.running, worker.answers.pending) == (len(running), len(pending))
        assert worker.answers.pending_context == pytest.approx(sum(f.load.prompt_tokens for f in pending), abs=1e-6)
        made = sum(worker.answers.steps - f.load.joined_steps for f in running)
        assert worker.answers.context_tokens == pytest.approx(
            sum(f.load.prompt_tokens for f in running) + made, abs=1e-5
        )
        assert worker.answers.decode_share == pytest.approx(sum(f.load.share for f in running + pending), abs=1e-6)


@given(events)
def test_sums_equal_a_loop_over_all_requests_and_end_at_zero(
    happened: list[tuple[str, int, float, float, float]],
) -> None:
    view, now = cluster(2, 2, 1), 0.0
    flights: list[Flight] = []
    for kind, number, gone, prompt_tokens, output_tokens in happened:
        now += gone
        flight = flights[number % len(flights)] if flights else None
        if kind == "start":
            incoming = ask(prompt_tokens, output_tokens, tpot_seconds=0.04 if number % 3 else float("inf"))
            flights.append(view.start(incoming, find(view, incoming, now), now))
        elif kind == "role":
            view.workers.put("p1", (Role.DECODE, Role.PREFILL)[number % 2], pool="pool")
        elif flight is not None and kind == "done":
            view.prefill_done(flight, now, prompt_tokens=prompt_tokens)
        elif flight is not None:
            view.finish(flight, now)
        check(view, flights)
    for flight in flights:
        view.finish(flight, now)
        view.finish(flight, now)
    check(view, [])
    for worker in view.workers.by_name.values():
        assert worker.idle
        assert worker.answers.tight_tpot_seconds == float("inf")
        assert worker.answers.decode_share == 0
    assert view.prefill_use == pytest.approx([0.0], abs=1e-6)
    assert view.decode_use == pytest.approx([0.0], abs=1e-6)


def test_a_memory_that_is_still_empty_is_used() -> None:
    memory = AffinityMemory(10)
    assert ClusterView(affinity=memory).affinity is memory


def test_progress_is_what_the_model_says() -> None:
    view = cluster(1, 1)
    flight = send(view, decoding=True)
    worker = flight.decode
    worker.answers.advance(0.55)
    assert worker.answers.context_tokens == pytest.approx(1050)
    assert worker.answers.left_tokens == pytest.approx(50)


def test_the_tightest_promise_of_a_worker() -> None:
    view = cluster(1, 1)
    tight, tighter = send(view, ask(tpot_seconds=0.03)), send(view, ask(tpot_seconds=0.02))
    worker = view.workers.by_name["d0"]
    assert worker.answers.tight_tpot_seconds == 0.02
    view.finish(tighter, 0.0)
    assert worker.answers.tight_tpot_seconds == 0.03
    view.finish(tight, 0.0)
    assert worker.answers.tight_tpot_seconds == float("inf")


def test_reports_add_what_other_gateways_started() -> None:
    view = cluster(2, 2)
    send(view)
    view.report("p0", report(running=1, waiting=0), 0.0)
    assert not view.workers.by_name["p0"].foreign
    view.report("p0", report(running=1, waiting=4), 0.0)
    assert find(view).prefill.name == "p1"
    view.report("d1", report(running=30, waiting=0, kv_usage=0.5), 0.0)
    assert view.workers.by_name["d1"].answers.foreign_running == 30
    assert view.workers.by_name["d1"].answers.foreign_context == pytest.approx(50_000)
    assert all(send(view).decode.name == "d0" for _ in range(5))
    view.tick(9.0)
    assert view.workers.by_name["d1"].foreign
    view.tick(11.0)
    assert not view.workers.by_name["d1"].foreign


def test_what_waits_on_a_mixed_worker_is_prefill_whoever_runs() -> None:
    """Five of ours decode there; three of another gateway wait, and the engine does not say how long they are."""
    view = cluster(0, 0, 1)
    for _ in range(5):
        send(view, decoding=True)
    view.report("m0", report(running=5, waiting=3), 0.0)
    worker = view.workers.by_name["m0"]
    assert worker.answers.foreign_running == 0
    assert worker.prompts.foreign_seconds == pytest.approx(3 * view.mean_prompt_tokens * 1e-4)


def test_unknown_figures_are_no_zeros() -> None:
    view = cluster(1, 1)
    view.report("d0", report(running=9, waiting=0), 0.0)
    view.report("d0", report(), 1.0)
    view.report("nobody", report(running=1, waiting=1), 1.0)
    assert view.workers.by_name["d0"].answers.foreign_running == 9


def test_another_process_of_a_worker_knows_nothing_of_the_old_one() -> None:
    view = cluster(1, 1)
    flight = send(view, ask(prefix=(1,)))
    before = flight.prefill
    assert view.workers.put("p0", Role.PREFILL, pool="pool") == (before,)
    (after,) = view.workers.put("p0", Role.PREFILL, pool="pool", incarnation="2")
    assert after is not before
    assert after.idle
    assert view.affinity.match((1,)) == (0, [])
    view.finish(flight, 1.0)
    view.workers.remove("p0")
    view.workers.remove("p0")
    assert find(view).whole


def loaded(prompts: list[tuple[float, float]], now: float) -> ClusterView:
    view = cluster(1, 1)
    for prompt_tokens, output_tokens in prompts:
        flight = view.start(ask(prompt_tokens, output_tokens), find(view), 0.0)
        view.prefill_done(flight, 0.0)
    view.workers.by_name["d0"].answers.advance(now)
    return view


lengths = st.tuples(st.floats(1, 10_000), st.floats(1, 2000))


@given(st.lists(lengths, max_size=20), st.floats(1, 10_000), st.floats(0, 5), st.floats(0, 5))
def test_predictions_rise_with_the_decode_load(
    residents: list[tuple[float, float]], prompt_tokens: float, now: float, delay: float
) -> None:
    view = loaded(residents, now)
    worker = view.workers.by_name["d0"]

    def predict() -> HandOver:
        return hand_over(worker, now, delay, 1000.0, 200.0)

    before = predict()
    # One that stays at least as long as the others: a short one would also shorten the mean stay.
    longest = max((output for _, output in residents), default=1.0)
    flight = view.start(ask(prompt_tokens, longest), find(view), now)
    promised = predict()
    view.prefill_done(flight, now)
    joined = predict()
    # Where memory is full a request adds to the wait for it: fewer, longer ones in a step do not make it longer.
    assert before.step_seconds <= promised.step_seconds + 1e-9 or promised.slot_seconds > 0
    assert before.kv_tokens <= promised.kv_tokens + 1e-6
    if delay == 0:
        assert before.step_seconds <= joined.step_seconds + 1e-9 or joined.slot_seconds > 0


@given(st.lists(lengths, min_size=1, max_size=20), st.floats(0, 100), st.floats(0, 100))
def test_a_decode_worker_empties_with_time(residents: list[tuple[float, float]], soon: float, more: float) -> None:
    view = loaded(residents, 0.0)
    worker = view.workers.by_name["d0"]
    sooner = hand_over(worker, 0.0, soon, 1000.0, 200.0)
    later = hand_over(worker, 0.0, soon + more, 1000.0, 200.0)
    assert later.step_seconds <= sooner.step_seconds + 1e-9


def test_what_is_overdue_is_not_taken_for_nearly_gone() -> None:
    """Answers of 6 tokens that are still there after a minute wait for something: they will not end in a moment."""
    view = loaded([(500.0, 6.0)] * 15, 0.0)
    worker = view.workers.by_name["d0"]
    on_time, overdue = (hand_over(worker, now, 1.0, 500.0, 6.0) for now in (0.1, 60.0))
    assert on_time.step_seconds < SPEED.decode_step_seconds(2, 1000)
    assert overdue.step_seconds > SPEED.decode_step_seconds(14, 7000)


@given(st.lists(lengths, max_size=20), lengths, st.floats(0, 3))
def test_predicted_ttft_rises_with_the_queue(
    queue: list[tuple[float, float]], more: tuple[float, float], now: float
) -> None:
    view = cluster(1, 1)
    for prompt_tokens, output_tokens in queue:
        view.start(ask(prompt_tokens, output_tokens), find(view, ask(whole=False)), 0.0)
    worker = view.workers.by_name["p0"]
    before = worker.prompts.backlog_seconds(now)
    view.start(ask(*more), find(view), now)
    after = worker.prompts.backlog_seconds(now)
    assert after >= before
    assert before >= 0
    assert worker.engine.work_seconds(1000, 0) >= worker.engine.work_seconds(1000, 500) >= 0


def test_a_full_batch_means_waiting_for_a_place() -> None:
    view = cluster(1, 1)
    view.workers.by_name["d0"].engine.max_batch = 4.0
    for _ in range(3):
        send(view, decoding=True)
    assert find(view).hand_over.slot_seconds == 0
    for _ in range(3):
        send(view, decoding=True)
    assert find(view, ask(two_legs=True)).hand_over.slot_seconds > 0
    assert SPEED.max_batch == 256


def served(view: ClusterView, slow: str, times: int) -> None:
    for number in range(times):
        flight = send(view, now_seconds=10.0 * number, decoding=True)
        view.finish(flight, 10.0 * number + 5)
        seconds = flight.route.ttft_seconds * (10 if flight.prefill.name == slow else 1)
        tpot_seconds = flight.route.tpot_seconds * (10 if flight.decode.name == slow else 1)
        flight.served(ttft_seconds=seconds, tpot_seconds=tpot_seconds)


@pytest.mark.parametrize("slow", ["p1", "d2"])
def test_a_worker_that_is_much_slower_than_its_like_is_left_alone_for_a_while(slow: str) -> None:
    view = cluster(3, 3)
    served(view, slow, 75)
    assert [worker.name for worker in view.tick(1000.0)] == [slow]
    assert view.workers.by_name[slow].suspect
    assert view.tick(1001.0) == []
    assert slow not in {name for _ in range(9) for name in (find(view).prefill.name, find(view).decode.name)}
    view.tick(1010.0)
    assert not view.workers.by_name[slow].suspect


def test_workers_that_are_not_alike_are_not_compared() -> None:
    view = cluster(1, 1, 1)
    served(view, "p0", 100)
    assert view.tick(1000.0) == []


@pytest.mark.parametrize(("failures", "ejected"), [(1, False), (8, True)])
def test_a_worker_that_fails_many_of_its_requests_is_an_outlier(failures: int, ejected: bool) -> None:
    view = cluster(4, 1)
    now = 0.0
    for turn in range(200):
        now += 0.6
        for worker in list(view.workers.by_name.values()):
            if worker.name == "p2" and turn % 20 < failures:
                view.workers.failed(worker, now)
            else:
                view.workers.worked(worker)
        gone = view.tick(now)
        if gone:
            break
    assert ([worker.name for worker in gone] == ["p2"]) == ejected
