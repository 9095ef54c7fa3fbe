"""What a prefix is worth where it is: on the device, in host memory, in the KV pool, nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct
from tests.routing.cluster import SPEED, ask, cluster, find, send

from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import Tiers, restore
from fulcrum.routing import AffinityMemory, ClusterView, prefill_left_seconds
from fulcrum.routing.affinity import POOL

PREFIX = tuple(range(100, 110))
"""5,120 tokens; computing them takes 0.512 s."""
PROMPT = 5632.0
FAST = TransferCost(base_seconds=0.0, seconds_per_token=1e-6)
PARITY = TransferCost(base_seconds=0.0, seconds_per_token=1e-4)
SLOW = TransferCost(base_seconds=0.0, seconds_per_token=1e-2)
HOST = Tiers(host_tokens=1_000_000.0, host_link=FAST)


def with_tiers(tiers: Tiers | None, prefills: int = 1) -> ClusterView:
    """The prefix was sent to p0, and then more than its device holds."""
    view = cluster(prefills, 1)
    for number in range(prefills):
        view.workers.set_tiers(f"p{number}", tiers)
    others = frozenset(f"p{number}" for number in range(1, prefills))
    view.finish(send(view, ask(PROMPT, prefix=PREFIX, exclude=others)), 0.0)
    for number in range(100):
        view.finish(send(view, ask(5120.0, prefix=(1000 + number,), exclude=others)), 0.0)
    return view


def test_what_left_the_device_is_loaded_as_the_split_says() -> None:
    for link, front in ((FAST, False), (PARITY, True), (PARITY, False)):
        view = with_tiers(replace(HOST, host_link=link, front=front))
        way = restore(
            matched_tokens=5120, prompt_tokens=int(PROMPT), speed=SPEED.coefficients, link=link, front=front,
            within_seconds=prefill_left_seconds(view.ttft_seconds, 0.0),
        )  # fmt: skip
        found = find(view, ask(PROMPT, prefix=PREFIX))
        assert found.loaded_tokens == way.load_tokens > 0
        assert found.cached_tokens == 5120 - way.recompute_tokens
        assert found.own_seconds == pytest.approx(way.predicted_seconds, rel=0.02)


@pytest.mark.parametrize(
    ("promise", "waited", "left"),
    [(1.0, 0.0, 0.8), (10.0, 0.0, 8.0), (10.0, 2.0, 6.0), (10.0, 8.0, 0.0), (10.0, 9.0, 0.0), (0.0, 0.0, 0.0)],
)
def test_the_hand_over_keeps_its_part_of_the_promise_however_long_a_request_waited(
    promise: float, waited: float, left: float
) -> None:
    assert prefill_left_seconds(promise, waited) == pytest.approx(left)


def test_a_promise_that_leaves_time_is_used_to_load_more_and_compute_less() -> None:
    """Computing the prefix takes 0.51 s, loading it 1.02 s, both at once 0.34 s; the promise is 1 s."""
    slow = TransferCost(base_seconds=0.0, seconds_per_token=2e-4)
    computed = {}
    for promise, waited in ((0.3, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 0.4), (0.3, 1.0)):
        view = with_tiers(replace(HOST, host_link=slow, front=True))
        asked = replace_struct(ask(PROMPT, prefix=PREFIX), ttft_seconds=promise, waited_seconds=waited)
        found = find(view, asked)
        way = restore(
            matched_tokens=5120, prompt_tokens=int(PROMPT), speed=SPEED.coefficients, link=slow,
            within_seconds=prefill_left_seconds(promise, waited),
        )  # fmt: skip
        assert found.loaded_tokens == way.load_tokens
        computed[promise, waited] = PROMPT - found.cached_tokens
    quickest = computed[0.3, 0.0]
    assert quickest == computed[0.3, 1.0] > computed[0.5, 0.0] == computed[1.0, 0.4] >= computed[1.0, 0.0]


def test_at_parity_the_front_is_computed_meanwhile() -> None:
    tight = replace_struct(ask(PROMPT, prefix=PREFIX), ttft_seconds=0.3)
    both, load = (
        find(with_tiers(replace(HOST, host_link=PARITY, front=front)), tight).own_seconds for front in (True, False)
    )
    computed = find(with_tiers(None), ask(PROMPT, prefix=PREFIX)).own_seconds
    assert both < 0.6 * min(load, computed)


def test_what_takes_longer_to_load_than_to_compute_is_computed() -> None:
    found = find(with_tiers(replace(HOST, host_link=SLOW)), ask(PROMPT, prefix=PREFIX))
    assert (found.cached_tokens, found.loaded_tokens) == (0.0, 0.0)
    assert found.ttft_seconds == pytest.approx(find(with_tiers(None), ask(PROMPT)).ttft_seconds)


def test_on_the_device_nothing_is_loaded() -> None:
    view = with_tiers(HOST)
    view.finish(send(view, ask(PROMPT, prefix=PREFIX)), 0.0)
    found = find(view, ask(PROMPT, prefix=PREFIX))
    assert (found.cached_tokens, found.loaded_tokens) == (5120.0, 0.0)


def test_the_pool_serves_a_worker_that_never_held_the_prefix() -> None:
    pooled = Tiers(host_tokens=1.0, host_link=FAST, pool_tokens=10_000_000.0, pool_link=FAST)
    found = find(with_tiers(pooled, 2), ask(PROMPT, prefix=PREFIX, exclude=frozenset({"p0"})))
    assert (found.prefill.name, found.loaded_tokens) == ("p1", 5120.0)
    alone = find(with_tiers(HOST, 2), ask(PROMPT, prefix=PREFIX, exclude=frozenset({"p0"})))
    assert (alone.prefill.name, alone.loaded_tokens) == ("p1", 0.0)
    gone = with_tiers(pooled, 2)
    for name in ("p0", "p1"):
        gone.workers.set_tiers(name, replace(pooled, pool_tokens=0.0, pool_link=None))
    assert find(gone, ask(PROMPT, prefix=PREFIX, exclude=frozenset({"p0"}))).loaded_tokens == 0.0


def test_a_holder_with_a_queue_is_left_for_an_idle_worker_that_loads() -> None:
    pooled = replace(HOST, pool_tokens=10_000_000.0, pool_link=FAST)
    view = with_tiers(pooled, 2)
    view.finish(send(view, ask(PROMPT, prefix=PREFIX, exclude=frozenset({"p1"}))), 0.0)
    assert find(view, ask(PROMPT, prefix=PREFIX)).prefill.name == "p0", "it holds it on its device"
    send(view, ask(20_000.0, exclude=frozenset({"p1"})))
    assert find(view, ask(PROMPT, prefix=PREFIX)).prefill.name == "p1"


def test_a_prefill_that_waited_for_its_load_says_nothing_of_the_engines_speed() -> None:
    for tiers, rows in ((HOST, 0), (None, 1)):
        view = with_tiers(tiers)
        view.steps.take()
        flight = send(view, ask(PROMPT, prefix=PREFIX))
        view.prefill_done(flight, 1.0)
        assert len(view.steps.take().get("pool", ())) == rows


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=60), st.integers(1, 12))
def test_the_pools_memory_is_bounded_and_forgets_what_was_used_longest_ago(
    given_prompts: list[tuple[int, int]], capacity: int
) -> None:
    known = AffinityMemory(capacity, [512 * (number + 1) for number in range(8)])
    known.join(1, 1e9)
    known.record((1,), 1, 512.0, 512.0)
    assert known.held((1,), POOL) == 0, "there is no pool"
    known.join(POOL, 0.0, 4096.0)
    assert known.held((1,), POOL) == 0, "it came later"
    for chain, length in given_prompts:
        keys = tuple(chain * 100 + number for number in range(length))
        computed = 512.0 * length - known.held(keys, POOL)
        known.record(keys, 1, computed, computed)
        assert known.held(keys, POOL) == 512 * min(length, capacity)
        assert POOL not in known.match(keys)[1]
        assert len(known) <= capacity
    known.record((900,), 1, 5000.0, 5000.0)
    assert known.held((900,), POOL) == 512
    assert known.held((0, 1), POOL) == 0
    known.leave(POOL)
    assert known.held((900,), POOL) == 0
