"""Paths by predicted latency: a table of situations, and what may never happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.cluster import SPEED, ask, cluster, find, names, send

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, NoPath, Route, route


def test_no_worker_and_none_that_fits_are_different() -> None:
    assert route(ask(), ClusterView(), 0.0) == NoPath.NO_WORKER
    view = cluster(0, 0)
    view.workers.put("x", Role.DRAINING, pool="pool")
    assert route(ask(), view, 0.0) == NoPath.NONE_FITS
    view = cluster(1, 1)
    assert route(ask(exclude=frozenset({"p0", "d0"})), view, 0.0) == NoPath.NONE_FITS
    assert route(ask(1_000_000.0), view, 0.0) == NoPath.NO_POOL


def test_an_answer_of_one_token_has_no_pace() -> None:
    """A worker that has just become one for decoding still prefills: that delays a first token, and no other."""
    view = cluster(1, 1)
    send(view, ask(9000.0))
    view.workers.put("p0", Role.DECODE, pool="pool")
    view.workers.put("d0", Role.PREFILL, pool="pool")
    one, many = (find(view, ask(output_tokens=tokens, two_legs=True)) for tokens in (1.0, 2.0))
    assert one.decode.name == many.decode.name == "p0"
    assert one.hand_over.step_seconds < 0.05
    assert many.hand_over.step_seconds > 0.4
    assert one.ttft_seconds > 0.9


def test_the_shorter_queue_and_the_smaller_batch() -> None:
    view = cluster(2, 2)
    first = send(view, ask(5000.0))
    assert first.prefill.name == "p0"
    assert names(find(view))[0] == "p1"
    for _ in range(3):
        send(view, ask(1000.0))
    assert names(find(view, ask(1000.0)))[0] == "p1"
    send(view, ask(5000.0))
    assert find(view).prefill.name == "p0"
    assert abs(view.workers.by_name["d0"].answers.pending - view.workers.by_name["d1"].answers.pending) <= 1


def test_a_worker_whose_answers_outgrew_what_was_expected_of_them_is_a_full_one() -> None:
    view = cluster(1, 2)
    for _ in range(10):
        send(view, ask(exclude=frozenset({"d1"})), decoding=True)
    for _ in range(12):
        send(view, ask(exclude=frozenset({"d0"})), now_seconds=200.0, decoding=True)
    long = view.workers.by_name["d0"]
    assert long.turns_out_fuller(200.0), "10 contexts of about 11,000 tokens, in a cache of 100,000"
    assert not long.turns_out_fuller(200.0), "it is known now"
    assert long.answers.load > 1
    assert names(find(view, now_seconds=200.0)) == ("p0", "d1")


def test_predicted_ttft_is_queue_plus_own_plus_transfer_plus_first_step() -> None:
    view = cluster(1, 1)
    assert find(view).ttft_seconds == pytest.approx(0.1 + 0.01 + 0.011)
    send(view, ask(3000.0))
    found = find(view)
    assert found.wait_seconds == pytest.approx(0.3)
    assert found.ttft_seconds == pytest.approx(0.3 + 0.1 + 0.01 + 0.012)
    assert find(view, now_seconds=0.2).wait_seconds == pytest.approx(0.1)


def test_a_stalled_prefill_worker_is_avoided() -> None:
    view = cluster(2, 1)
    stalled = send(view)
    assert stalled.prefill.name == "p0"
    for _ in range(3):
        send(view, ask(1000.0, exclude=frozenset({"p0"})), 9.9)
    assert view.workers.by_name["p1"].prompts.legs
    assert find(view, now_seconds=10.0).prefill.name == "p1"


def test_the_worker_that_has_the_prefix_unless_it_is_too_busy() -> None:
    view = cluster(4, 1)
    keys = tuple(range(100, 108))
    turn = send(view, ask(4500.0, prefix=keys))
    holder = turn.prefill
    view.prefill_done(turn, 0.5)
    view.finish(turn, 1.0)
    again = find(view, ask(4800.0, prefix=(*keys, 200)), 1.0)
    # The decode worker pulled the same KV, so the short rest may be computed there at once.
    assert again.cached_tokens == 4096
    assert again.prefill is holder or again.prefill is turn.decode
    assert find(view, ask(4800.0, prefix=(300, 301)), 1.0).cached_tokens == 0
    for _ in range(12):
        view.start(ask(8000.0), again, 1.0)
    away = find(view, ask(4800.0, prefix=(*keys, 200)), 1.0)
    assert away.prefill is not again.prefill


def test_a_shared_prefix_is_known_to_several_workers() -> None:
    view = cluster(3, 1)
    for _ in range(3):
        send(view, ask(8000.0, prefix=(1, 2, 3)))
    assert len(set(view.affinity.match((1, 2, 3))[1])) == 3


def test_the_same_node_among_equals() -> None:
    view = cluster(0, 0)
    view.workers.put("p", Role.PREFILL, pool="pool", node="n2")
    for number in range(4):
        view.workers.put(f"d{number}", Role.DECODE, pool="pool", node=f"n{number}")
    assert names(find(view)) == ("p", "d2")
    for _ in range(10):
        view.start(ask(), find(view), 0.0)
    assert find(view).decode.name != "d2"


def test_pools_admit() -> None:
    view = cluster(1, 1)
    view.workers.put("c0", Role.PREFILL, pool="cpu")
    view.workers.set_speed("cpu", SPEED)
    view.workers.set_pools({"cpu": PoolAdmits(min_prompt_tokens=5000), "pool": PoolAdmits(max_prompt_tokens=20_000)})
    for _ in range(5):
        assert send(view, ask(1000.0)).prefill.name == "p0"
    assert send(view, ask(6000.0)).prefill.name == "c0"
    assert isinstance(route(ask(30_000.0), view, 0.0), Route), "in one leg on the pool that takes it"


def test_pools_admit_classes() -> None:
    view = ClusterView(class_names=("batch", "chat"))
    view.workers.put("a", Role.MIXED, pool="a")
    view.workers.set_pools({"a": PoolAdmits(classes=("batch",))})
    assert find(view, ask(qos=0)).prefill.name == "a"
    assert route(ask(qos=1), view, 0.0) == NoPath.NO_POOL


@pytest.mark.parametrize(
    ("prompt_tokens", "qos", "never"),
    [(1000.0, 0, False), (6000.0, 0, False), (6000.0, 1, True), (50_000.0, 0, False), (90_000.0, 0, True)],
)
def test_a_pool_that_has_no_worker_just_now_still_takes_requests(prompt_tokens: float, qos: int, never: bool) -> None:
    """Who only has to wait for a worker is not told that it will never be served."""
    view = ClusterView(class_names=("batch", "chat"))
    view.workers.set_pools({"big": PoolAdmits(min_prompt_tokens=500, max_prompt_tokens=60_000, classes=("batch",)),
                    "small": PoolAdmits(max_prompt_tokens=400)})  # fmt: skip
    view.workers.put("s", Role.MIXED, pool="small")
    assert route(ask(prompt_tokens, qos=qos), view, 0.0) == (NoPath.NO_POOL if never else NoPath.NONE_FITS)
    view.workers.put("b", Role.DRAINING, pool="big")
    assert (route(ask(prompt_tokens, qos=qos), view, 0.0) is NoPath.NO_POOL) == never
    view.workers.put("b", Role.MIXED, pool="big")
    found = route(ask(prompt_tokens, qos=qos), view, 0.0)
    assert found is NoPath.NO_POOL if never else isinstance(found, Route)


def test_a_pool_without_workers_is_as_large_as_its_workers_were() -> None:
    view = cluster(1, 1)
    view.workers.set_pools({"pool": None, "tiny": None})
    assert route(ask(1_000_000.0), view, 0.0) is NoPath.NONE_FITS, "how much a tiny one holds is not known"
    view.workers.set_speed("tiny", SPEED)
    assert route(ask(1_000_000.0), view, 0.0) is NoPath.NO_POOL


def test_revisions_are_never_paired() -> None:
    view = cluster(0, 0)
    view.workers.put("p-old", Role.PREFILL, pool="pool", revision="old")
    view.workers.put("d-new", Role.DECODE, pool="pool", revision="new")
    assert find(view).whole
    view.workers.put("d-old", Role.DECODE, pool="pool", revision="old")
    for _ in range(50):
        flight = send(view)
        assert flight.prefill.revision == flight.decode.revision


def test_suspects_come_last() -> None:
    view = cluster(2, 1)
    view.workers.failed(view.workers.by_name["p0"], 0.0)
    for _ in range(5):
        assert send(view).prefill.name == "p1"
    view.workers.failed(view.workers.by_name["p1"], 0.0)
    view.workers.failed(view.workers.by_name["d0"], 0.0)
    assert isinstance(route(ask(), view, 0.0), Route)
    view.tick(1.0)
    trial = send(view, now_seconds=1.0)
    assert trial.prefill.name not in {
        worker.name for one in view.workers.revisions for p in one.pools for worker in p.workers
    }
    view.workers.worked(trial.prefill)
    assert trial.prefill.health.breaker.available


def test_a_role_that_is_empty_does_not_stop_the_service() -> None:
    assert names(find(cluster(2, 0))) in {("p0",), ("p1",)}
    assert names(find(cluster(0, 2))) in {("d0",), ("d1",)}
    assert names(find(cluster(1, 1), ask(exclude=frozenset({"p0"})))) == ("d0",)
    assert names(find(cluster(1, 1), ask(exclude=frozenset({"d0"})))) == ("p0",)
    assert names(find(cluster(1, 1), ask(whole=True))) == ("d0",)


def test_late_prefills_go_to_a_decode_worker_with_slack_and_only_there() -> None:
    view = cluster(1, 1)
    tiny = find(view, ask(1.0))
    pair = find(view, ask(5000.0))
    for _ in range(3):
        view.start(ask(5000.0), pair, 0.0)
    assert names(find(view)) == ("d0",)
    for number in range(45):
        flight = view.start(ask(1.0), tiny, 0.0)
        view.prefill_done(flight, number * 1e-3)
    assert names(find(view, now_seconds=0.05)) == ("p0", "d0")


@pytest.mark.parametrize(("output_tokens", "deflected"), [(60.0, False), (2000.0, True)])
def test_a_late_prefill_waits_where_short_answers_would_miss_their_promise_for_it(
    output_tokens: float, deflected: bool
) -> None:
    """It would stop five answers for 0.3 s: that matters little to long ones."""
    view = cluster(1, 1)
    for number in range(5):
        send(view, ask(prompt_tokens=100, output_tokens=output_tokens), 0.02 * number, decoding=True)
    queued = ask(prompt_tokens=5000, output_tokens=output_tokens)
    pair = find(view, queued, 0.1)
    for _ in range(3):
        view.start(queued, pair, 0.1)
    assert find(view, ask(prompt_tokens=3000), 0.1).whole is deflected


def busy_decoding() -> ClusterView:
    """A pair; a step of the decode worker takes 30 ms, and short answers are on it."""
    view = cluster(1, 1)
    for _ in range(20):
        send(view, ask(1.0, 20.0), decoding=True)
    return view


def test_a_prompt_that_is_in_time_only_without_the_transfer_stays_where_it_is_prefilled() -> None:
    """Two and a half steps on the other worker, 77 ms, are between the prefill and the first token."""
    view = busy_decoding()
    assert names(find(view, ask(9200.0))) == ("p0", "d0")
    assert names(find(view, ask(9700.0))) == ("p0",)
    assert names(find(view, ask(9700.0, two_legs=True))) == ("p0", "d0")
    assert names(find(view, ask(10_100.0))) == ("p0", "d0"), "late either way"


@pytest.mark.parametrize(("prompt_tokens", "stays"), [(4000.0, True), (9000.0, False)])
def test_it_does_not_stay_where_prompts_would_hold_up_its_answer(prompt_tokens: float, stays: bool) -> None:
    """A prompt a second: at 0.9 s each, a step of 11 ms comes after five times as long."""
    view = busy_decoding()
    for number in range(60):
        flight = send(view, ask(prompt_tokens, 1.0), float(number))
        view.prefill_done(flight, number + prompt_tokens * 1e-4)
        view.finish(flight, number + 0.95)
    assert find(view, ask(9700.0), 60.0).whole is stays


def test_prompts_leave_the_worker_alone_on_which_one_stays() -> None:
    view = busy_decoding()
    stays = send(view, ask(9700.0))
    assert names(stays.route) == ("p0",)
    view.workers.put("p1", Role.PREFILL, pool="pool")
    view.prefill_done(send(view, now_seconds=0.5), 0.6)
    view.prefill_done(stays, 0.97)
    for number in range(5):
        flight = send(view, now_seconds=1.0 + number)
        assert flight.prefill.name == "p1", "it was busy more lately"
        view.prefill_done(flight, 1.1 + number)
    view.finish(stays, 6.0)
    assert find(view, now_seconds=7.0).prefill.name == "p0", "nobody decodes there now, and it was used longer ago"
    view.prefill_done(send(view, now_seconds=7.0), 7.1)
    assert find(view, now_seconds=8.0).prefill.name == "p1"


def test_what_came_to_a_worker_in_another_role_is_not_expected_to_go_on() -> None:
    """A prefill worker that becomes the second decode worker takes the next request: it has nothing to do."""
    view = cluster(2, 1)
    for number in range(40):
        flight = send(view, ask(1000.0, 2000.0), number * 0.25)
        view.prefill_done(flight, number * 0.25 + 0.2)
    before = find(view, ask(), 10.0)
    view.workers.put("p1", Role.DECODE, pool="pool")
    after = find(view, ask(), 10.0)
    assert names(after) == ("p0", "p1")
    assert after.hand_over.step_seconds == pytest.approx(after.hand_over.own_step_seconds)
    assert after.hand_over.step_seconds < before.hand_over.step_seconds


def test_a_mixed_worker_competes() -> None:
    view = cluster(1, 1, 1)
    seen = {names(send(view).route) for _ in range(8)}
    assert seen == {("p0", "d0"), ("m0",)}


fleets = st.lists(
    st.tuples(st.sampled_from(list(Role)), st.sampled_from("ab"), st.sampled_from(["r1", "r2"]), st.booleans()),
    max_size=8,
)


@given(fleets, st.booleans(), st.sets(st.integers(0, 7)), st.integers(0, 20))
def test_a_path_is_found_exactly_when_somebody_in_a_role_is_left(
    fleet: list[tuple[Role, str, str, bool]], whole: bool, gone: set[int], busy: int
) -> None:
    view = ClusterView()
    for number, (role, pool, revision, broken) in enumerate(fleet):
        (worker,) = view.workers.put(f"w{number}", role, pool=pool, revision=revision)
        if broken:
            view.workers.failed(worker, 0.0)
    for _ in range(busy):
        found = route(ask(), view, 0.0)
        if isinstance(found, Route):
            view.start(ask(), found, 0.0)
    exclude = frozenset(f"w{number}" for number in gone)
    found = route(ask(whole=whole, exclude=exclude), view, 0.0)
    left = [n for n, (role, *_) in enumerate(fleet) if role is not Role.DRAINING and n not in gone]
    if not isinstance(found, Route):
        assert not left
        assert (found is NoPath.NO_WORKER) == (not fleet)
        return
    assert {found.prefill.name, found.decode.name}.isdisjoint(exclude)
    assert Role.DRAINING not in (found.prefill.role, found.decode.role)
    assert found.prefill.revision == found.decode.revision
    if not found.whole:
        assert not whole
        assert (found.prefill.role, found.decode.role) == (Role.PREFILL, Role.DECODE)
    if any(not fleet[n][3] for n in left):
        assert not found.prefill.suspect
        assert not found.decode.suspect


def test_engines_that_cost_no_time() -> None:
    """A profile may leave a part out: zero is a speed like any other."""
    view = cluster()
    nothing = SpeedCoefficients(prefill_a=0.0, prefill_b=0.0, prefill_c=0.0, decode_a=0.0, decode_b=0.0, decode_c=0.0)
    view.workers.set_speed("pool", WorkerSpeed(coefficients=nothing, kv_capacity_tokens=100_000))
    for number in range(5):
        found = find(view, now_seconds=float(number))
        assert 0 <= found.tpot_seconds < 1e-3
        send(view, now_seconds=float(number), decoding=True)
