"""Pairs that cannot move KV: their state by canaries, and that no request goes over them in two legs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.cluster import ask, cluster, find, names, send

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.routing import PairHealth, Route, route

PAIR = ("p0", "d0")


def test_a_failing_pair_is_tried_again_with_longer_and_longer_pauses() -> None:
    health = PairHealth()
    now, pauses = 0.0, []
    for number in range(8):
        assert health.failed(PAIR, now, "recomputed") is (number == 0)
        assert not list(health.due(now))
        pauses.append(health.failing[PAIR].retest_at_seconds - now)
        now += pauses[-1]
        assert list(health.due(now)) == [PAIR]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert (health.failing[PAIR].failures, health.failing[PAIR].since_seconds) == (8, 0.0)
    assert health.worked(PAIR)
    assert not health.failing
    assert not health.worked(PAIR)


def test_who_works_and_who_does_not() -> None:
    health = PairHealth()
    health.worked(("p0", "d1"))
    health.worked(("p1", "d0"))
    health.failed(PAIR, 0.0, "recomputed")
    assert [health.pulled_from(name) for name in ("p0", "p1", "d0", "d1")] == [1, 1, 0, 0]
    assert [health.pulls_from(name) for name in ("p0", "p1", "d0", "d1")] == [0, 0, 1, 1]
    assert list(health.failing) == [PAIR]
    health.forget("d0")
    assert not health.failing
    assert [health.pulled_from(name) for name in ("p0", "p1")] == [1, 0]


def test_a_failing_pair_gets_no_request_and_its_workers_do_with_others() -> None:
    view = cluster(2, 2)
    view.workers.set_broken([PAIR])
    paths = {names(send(view, ask(two_legs=True)).route) for _ in range(24)}
    assert ("p0", "d0") not in paths
    assert {name for path in paths for name in path} == {"p0", "p1", "d0", "d1"}
    only = ask(two_legs=True, exclude=frozenset({"p1", "d1"}))
    assert find(view, only).whole
    view.workers.set_broken([])
    assert names(find(view, only)) == ("p0", "d0")


def test_a_prefill_worker_that_no_one_can_pull_from_gets_no_first_legs() -> None:
    view = cluster(2, 2)
    view.workers.set_broken([PAIR, ("p0", "d1")])
    assert view.workers.unpaired == {"p0"}
    assert {send(view, ask(two_legs=True)).prefill.name for _ in range(12)} == {"p1"}
    view.workers.remove("p1")
    found = find(view)
    assert found.whole, "no pair is left, so one worker does both"
    assert found.decode.role is Role.DECODE


def test_a_decode_worker_that_joins_makes_a_pair_again() -> None:
    view = cluster(1, 1)
    view.workers.set_broken([PAIR])
    assert find(view).whole
    view.workers.put("d1", Role.DECODE, pool="pool")
    assert names(find(view, ask(two_legs=True))) == ("p0", "d1")


@given(
    broken=st.sets(st.tuples(st.sampled_from(["p0", "p1", "p2"]), st.sampled_from(["d0", "d1"]))),
    count=st.integers(1, 12),
)
def test_no_two_legs_ever_go_over_a_broken_pair(broken: set[tuple[str, str]], count: int) -> None:
    view = cluster(3, 2)
    view.workers.set_broken(broken)
    for number in range(count):
        found = route(ask(500.0 * (number % 5 + 1)), view, 0.1 * number)
        assert isinstance(found, Route), "somebody is always there"
        assert found.whole or (found.prefill.name, found.decode.name) not in broken
        view.start(ask(500.0), found, 0.1 * number)


@pytest.mark.parametrize(
    ("revisions", "admits", "may"),
    [
        (("a", "a"), (None, None), True),
        (("a", "b"), (None, None), False),
        (("a", "a"), (PoolAdmits(max_prompt_tokens=4000), PoolAdmits(min_prompt_tokens=5000)), False),
        (("a", "a"), (PoolAdmits(max_prompt_tokens=4000), PoolAdmits(min_prompt_tokens=3000)), True),
        (("a", "a"), (PoolAdmits(classes=("gold",)), PoolAdmits(classes=("free",))), False),
        (("a", "a"), (PoolAdmits(classes=("gold",)), None), True),
    ],
)
def test_pairs_that_no_request_ever_uses(
    revisions: tuple[str, str], admits: tuple[PoolAdmits | None, PoolAdmits | None], may: bool
) -> None:
    view = cluster(0, 0)
    view.class_names = ("gold", "free")
    view.workers.set_pools({"one": admits[0], "other": admits[1]})
    (one,) = view.workers.put("one", Role.PREFILL, pool="one", revision=revisions[0])
    (other,) = view.workers.put("other", Role.DECODE, pool="other", revision=revisions[1])
    assert view.workers.may_pair(one, other) is may
    assert view.workers.may_pair(other, one) is may
    assert not view.workers.may_pair(one, one)
