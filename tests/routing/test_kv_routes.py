"""By which shares KV went to unlike decode pools, against those that the operator published."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routing.cluster import SPEED, cluster, send

from fulcrum.api.names import Role
from fulcrum.routing.kv_routes import KvRoutes, Shares, shares_of

WANTED = {"p": {"a": 0.7, "b": 0.3}}


def test_what_goes_as_published_has_no_excess() -> None:
    routes = KvRoutes()
    routes.set(WANTED)
    for turn in range(1000):
        routes.sent("p", "b" if turn % 10 < 3 else "a")
    assert routes.excess("p", "a") < 0.05
    assert routes.excess("p", "b") < 0.05


def test_a_pool_that_gets_all_has_the_rest_too_much() -> None:
    routes = KvRoutes()
    routes.set(WANTED)
    for _ in range(1000):
        routes.sent("p", "a")
    assert routes.excess("p", "a") == pytest.approx(0.3, abs=0.01)
    assert routes.excess("p", "b") == 0.0
    routes.set({"p": {"a": 0.7, "b": 0.3}})
    assert routes.excess("p", "a") > 0.25  # the same shares, read again, forget nothing
    routes.set({"p": {"a": 0.5, "b": 0.5}})
    assert routes.excess("p", "a") == 0.0


@given(
    sent=st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from("abc")), max_size=200),
    shares=st.dictionaries(
        st.sampled_from("pq"), st.dictionaries(st.sampled_from("ab"), st.floats(0, 1), min_size=1), max_size=2
    ),
)
def test_an_excess_is_a_share_and_pools_without_one_are_free(
    sent: list[tuple[str, str]], shares: dict[str, dict[str, float]]
) -> None:
    routes = KvRoutes()
    routes.set(shares)
    for source, target in sent:
        routes.sent(source, target)
        assert 0.0 <= routes.excess(source, target) <= 1.0 + 1e-9
        if target not in shares.get(source, {}):
            assert routes.excess(source, target) == 0.0


@pytest.mark.parametrize(
    ("routes", "shares"),
    [
        ([], {}),
        ([("p", "a", 0.7), ("p", "b", 0.3)], {"p": {"a": 0.7, "b": 0.3}}),
        ([("p", "a", 0.2), ("p", "b", 0.2)], {"p": {"a": 0.5, "b": 0.5}}),
        ([("p", "a", 0.0), ("p", "b", 0.0)], {}),
        ([("p", "a", -1.0), ("", "b", 0.3), ("q", "b", 2.0)], {}),
    ],
    ids=["none", "as they are", "scaled", "all zero", "nonsense"],
)
def test_shares_of_a_prefill_pool_sum_to_one(routes: list[tuple[str, str, float]], shares: Shares) -> None:
    found = shares_of(routes)
    assert found.keys() == shares.keys()
    for source, each in shares.items():
        assert found[source] == pytest.approx(each)


def decoded_by_slow(shares: Shares) -> float:
    """Return the share of requests that a decode pool of half the speed gets, each sent once the one before ended."""
    view = cluster(prefills=1, decodes=0)
    half = replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, decode_a=0.02, decode_b=2e-3))
    for pool, speed in (("fast", SPEED), ("slow", half)):
        view.workers.set_speed(pool, speed)
        view.workers.put(pool, Role.DECODE, pool=pool)
    view.kv_routes.set(shares)
    slow = 0
    for second in range(200):
        flight = send(view, now_seconds=float(second), decoding=True)
        slow += flight.decode.name == "slow"
        view.finish(flight, second + 0.5)
    return slow / 200


def test_requests_follow_the_routes() -> None:
    assert decoded_by_slow({}) == 0.0
    assert decoded_by_slow({"pool": {"fast": 0.5, "slow": 0.5}}) > 0.15
    assert decoded_by_slow({"pool": {"fast": 1.0, "slow": 0.0}}) == 0.0


def test_a_route_makes_no_request_miss_its_promise() -> None:
    view = cluster(prefills=1, decodes=0)
    crawling = replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, decode_a=0.2))
    for pool, speed in (("fast", SPEED), ("slow", crawling)):
        view.workers.set_speed(pool, speed)
        view.workers.put(pool, Role.DECODE, pool=pool)
    view.kv_routes.set({"pool": {"fast": 0.1, "slow": 0.9}})
    for second in range(100):
        flight = send(view, now_seconds=float(second), decoding=True)
        assert flight.decode.name == "fast"
        view.finish(flight, second + 0.5)
