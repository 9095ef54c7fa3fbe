"""Routing learns from hand-overs what moving KV costs, and goes by it."""

from __future__ import annotations

import pytest
from tests.routing.cluster import SPEED, ask, find, names

from fulcrum.api.gateway import LearntRate
from fulcrum.api.names import Role
from fulcrum.capacity.kv import TransferCost
from fulcrum.routing import AffinityMemory, ClusterView, token_ends

STEP = 0.011
"""Decode step of one request."""


def view(
    *decode_pools: str, prefill_pools: tuple[str, ...] = ("p",), nodes: dict[str, str] | None = None
) -> ClusterView:
    made = ClusterView(ttft_seconds=1.0, tpot_seconds=0.05, affinity=AffinityMemory(1000, token_ends(512, 64)))
    made.units_per_token = 1.0
    for pool, role in (*((p, Role.PREFILL) for p in prefill_pools), *((d, Role.DECODE) for d in decode_pools)):
        made.workers.set_speed(pool, SPEED)
        made.workers.put(pool, role, pool=pool, node=(nodes or {}).get(pool, ""))
    return made


def move(made: ClusterView, seconds: float, *, prefill: str = "p", decode: str = "d", now: float = 0.0) -> None:
    """One request of 1,000 tokens on idle workers, whose transfer takes `seconds`."""
    others = frozenset(made.workers.by_name) - {prefill, decode}
    incoming = ask(exclude=others, two_legs=True)
    flight = made.start(incoming, find(made, incoming, now), now)
    assert (flight.prefill.name, flight.decode.name) == (prefill, decode)
    made.prefill_done(flight, now + 0.1, prompt_tokens=1000.0)
    made.pulled(flight, now + 0.1 + seconds + STEP)
    made.finish(flight, now + 1.0)


def test_the_cost_of_a_pair_is_learnt_and_predicted() -> None:
    made = view("d")
    before = find(made).ttft_seconds
    for now in range(5):
        move(made, 0.4, now=float(now) * 10)
    found = find(made, now_seconds=60.0)
    assert found.ttft_seconds == pytest.approx(before + 0.4 - 0.002, abs=0.005)
    (rate,) = made.transfers.report()
    assert rate == LearntRate(
        prefill_pool="p",
        decode_pool="d",
        base_seconds=0.002,
        seconds_per_token=pytest.approx(0.398 / 1000),
        transfers=5,
    )


def test_a_slow_pair_of_pools_is_avoided_and_tried_again_after_a_while() -> None:
    made = view("d", "e")
    for now in range(5):
        move(made, 3.0, now=float(now) * 10)
    assert {names(find(made, now_seconds=60.0)) for _ in range(3)} == {("p", "e")}
    incoming = ask(exclude=frozenset({"e"}), two_legs=True)
    assert find(made, incoming, 60.0).ttft_seconds > 3.0
    made.start(ask(), find(made, now_seconds=10_000.0), 10_000.0)
    assert find(made, incoming, 10_000.0).ttft_seconds < 1.0


def test_a_prefill_pool_that_sends_slowly_is_avoided() -> None:
    made = view("d", prefill_pools=("p", "q"))
    for now in range(5):
        move(made, 0.5, now=float(now) * 10)
    assert names(find(made, now_seconds=60.0)) == ("q", "d")


def test_near_and_far_are_learnt_apart() -> None:
    """The decode worker on the prefill worker's node is near; what is learnt far away counts there until it is seen."""
    made = view("d", nodes={"p": "n1", "d": "n1"})
    made.workers.put("d2", Role.DECODE, pool="d", node="n2")
    for now in range(5):
        move(made, 2.0, decode="d2", now=float(now) * 10)
    near, far = ask(exclude=frozenset({"d2"}), two_legs=True), ask(exclude=frozenset({"d"}), two_legs=True)
    assert find(made, near, 60.0).ttft_seconds > 2.0
    for now in range(5):
        move(made, 0.1, decode="d", now=100.0 + now * 10)
    assert find(made, near, 200.0).ttft_seconds < 0.3
    assert find(made, far, 200.0).ttft_seconds > 2.0
    assert {rate.near for rate in made.transfers.report()} == {True, False}


def test_the_way_back_is_believed_to_be_as_slow_until_it_is_seen() -> None:
    made = view("d")
    for now in range(5):
        move(made, 2.0, now=float(now) * 10)
    made.workers.put("p", Role.DECODE, pool="p")
    made.workers.put("d", Role.PREFILL, pool="d")
    assert find(made, ask(two_legs=True), 60.0).ttft_seconds > 2.0
    for now in range(5):
        move(made, 0.1, prefill="d", decode="p", now=100.0 + now * 10)
    assert find(made, ask(two_legs=True), 200.0).ttft_seconds < 0.3
    made.workers.put("p", Role.PREFILL, pool="p")
    made.workers.put("d", Role.DECODE, pool="d")
    assert find(made, ask(two_legs=True), 200.0).ttft_seconds > 2.0


def test_pulls_wait_for_each_other() -> None:
    made = view("d")
    made.transfers.expect("p", TransferCost(base_seconds=0.0, seconds_per_token=1e-3))
    flights = [made.start(ask(two_legs=True), find(made, ask(two_legs=True)), 0.0) for _ in range(2)]
    alone = find(made, ask(two_legs=True), 0.3).ttft_seconds
    for flight in flights:
        made.prefill_done(flight, 0.3, prompt_tokens=1000.0)
    queued = find(made, ask(two_legs=True), 0.3).ttft_seconds
    assert queued > alone + 1.5
    made.pulled(flights[0], 1.3)
    assert find(made, ask(two_legs=True), 1.3).ttft_seconds < queued - 0.5
    for flight in flights:
        made.finish(flight, 2.0)
    assert find(made, ask(two_legs=True), 10.0).ttft_seconds == pytest.approx(0.1 + 1.0 + STEP, abs=0.1)
    assert all(worker.pulling_tokens == 0 for worker in made.workers.by_name.values())


def test_pulls_over_a_quicker_link_do_not_shorten_those_that_they_overtake() -> None:
    """NIXL moves KV to several decode workers at once: what is slow is the link of one of them."""
    made = view("d", "e")
    for round_ in range(4):
        now = 100.0 * round_
        incoming = ask(exclude=frozenset({"e"}), two_legs=True)
        slow = made.start(incoming, find(made, incoming, now), now)
        made.prefill_done(slow, now + 0.1, prompt_tokens=1000.0)
        for quick in range(9):
            move(made, 0.05, decode="e", now=now + 0.2 + 0.3 * quick)
        incoming = ask(exclude=frozenset({"e"}), two_legs=True)
        left = find(made, incoming, now + 2.8).ttft_seconds - find(made, incoming, now + 90.0).ttft_seconds
        made.pulled(slow, now + 0.1 + 3.0 + STEP)
        made.finish(slow, now + 9.0)
    rates = {rate.decode_pool: rate.seconds_per_token for rate in made.transfers.report()}
    assert rates["d"] == pytest.approx(3e-3, rel=0.02)
    assert rates["e"] == pytest.approx(5e-5, rel=0.1)
    assert left < 0.4, "of 3 s, 2.7 s are over"


def test_what_is_not_seen_teaches_nothing() -> None:
    made = view("d")
    flight = made.start(ask(), find(made), 0.0)
    made.pulled(flight, 0.05)  # not handed over yet
    made.prefill_done(flight, 0.1, seen=False)
    made.pulled(flight, 9.0)
    made.finish(flight, 10.0)
    made.pulled(flight, 11.0)
    assert made.transfers.report() == ()
    assert made.transfers.learnt == {}


@pytest.mark.parametrize("when", ["asked", "pulled"])
@pytest.mark.parametrize("filled", ["KV cache", "batch"])
def test_a_wait_for_a_place_that_other_gateways_took_teaches_nothing(filled: str, when: str) -> None:
    """What was learnt of such waits made KV transfers 66 times as slow as they are, so that no layout had two roles."""
    made = view("d")
    decode = made.workers.by_name["d"]
    in_kv = {"running": 3.0, "context_tokens": 0.9 * decode.engine.kv_capacity}
    in_batch = {"running": float(decode.engine.max_batch), "context_tokens": 0.1 * decode.engine.kv_capacity}
    others = in_kv if filled == "KV cache" else in_batch
    for now in (0.0, 10.0, 20.0, 30.0):
        flight = made.start(ask(two_legs=True), find(made, ask(two_legs=True), now), now)
        decode.set_foreign(now, **(others if when == "asked" else {}))
        made.prefill_done(flight, now + 0.1, prompt_tokens=1000.0)
        decode.set_foreign(now + 0.1, **(others if when == "pulled" else {}))
        made.pulled(flight, now + 9.0)
        made.finish(flight, now + 9.5)
        decode.set_foreign(now + 9.5)
    assert made.transfers.report() == ()
    for now in (40.0, 50.0, 60.0):
        move(made, 0.4, now=now)
    (rate,) = made.transfers.report()
    assert rate.seconds_per_token == pytest.approx(0.398 / 1000)


def test_a_decode_worker_that_holds_the_prefix_is_preferred() -> None:
    made = view("d")
    made.workers.put("d2", Role.DECODE, pool="d")
    made.transfers.expect("d", TransferCost(base_seconds=0.0, seconds_per_token=1e-4))
    prefix = tuple(range(1, 9))
    incoming = ask(prompt_tokens=4100.0, prefix=prefix, two_legs=True)
    first = made.start(incoming, find(made, incoming), 0.0)
    made.prefill_done(first, 0.4, prompt_tokens=4100.0)
    made.pulled(first, 0.9)
    held = first.decode.name
    # Others keep the holder a little busier than its peer.
    found = find(made, incoming, 1.0)
    assert found.decode.name == held
    assert found.ttft_seconds < 0.4


def test_what_was_learnt_of_a_pair_stays_when_another_pool_is_heard_of() -> None:
    made = view("d")
    for now in range(5):
        move(made, 0.4, now=float(now) * 10)
    learnt = find(made, now_seconds=60.0).ttft_seconds
    made.transfers.expect("other", TransferCost(base_seconds=0.0, seconds_per_token=1e-4))
    assert find(made, now_seconds=60.0).ttft_seconds == pytest.approx(learnt)
