"""The clusters that a request is tried on."""

from __future__ import annotations

import pytest

from fulcrum.front.choice import Choice, soonest, turned_away
from fulcrum.front.conversation import Conversation, conversation_of, named_conversation


def begun(number: int) -> Conversation:
    return conversation_of(b'[{"role":"user","content":"%d"}' % number, b"k")


def continued(number: int) -> Conversation:
    messages = b'[{"role":"user","content":"%d"},{"role":"assistant","content":"x"},{"role":"user","content":"y"}]'
    return conversation_of(messages % number, b"k")


def test_a_conversation_stays_where_it_began() -> None:
    choice = Choice({"a": 90, "b": 10})
    first = [choice.order(begun(number)) for number in range(200)]
    assert {order[0] for order in first} == {"a", "b"}
    for _ in range(3):
        assert [choice.order(continued(number)) for number in range(200)] == first


def test_a_conversation_that_another_replica_began_goes_where_all_replicas_send_it() -> None:
    one, other = Choice({"a": 50, "b": 50}), Choice({"a": 50, "b": 50})
    assert [one.order(continued(each)) for each in range(50)] == [other.order(continued(each)) for each in range(50)]


def test_fallback_follows_in_its_order_without_the_chosen_one() -> None:
    assert Choice({"a": 1}, ["b", "a", "c"]).order(None) == ("a", "b", "c")


def test_weight_zero_gets_no_new_conversation_and_ends_the_old_ones() -> None:
    choice = Choice({"a": 0, "b": 1})
    choice.order(named_conversation("one", b"k"))
    choice.change({"a": 1, "b": 0}, [])
    assert choice.order(named_conversation("one", b"k")) == ("b",)
    assert choice.order(named_conversation("two", b"k")) == ("a",)


def test_a_cluster_that_is_gone_gives_its_conversations_up() -> None:
    choice = Choice({"a": 0, "b": 1})
    choice.order(named_conversation("one", b"k"))
    choice.change({"a": 1}, [])
    assert choice.order(named_conversation("one", b"k")) == ("a",)


def test_only_fallback_is_left_when_every_weight_is_zero() -> None:
    assert Choice({"a": 0}, ["b"]).order(begun(1)) == ("b",)
    assert Choice({"a": 0}).order(None) == ()


@pytest.mark.parametrize(("status", "away"), [(200, False), (400, False), (429, True), (500, False), (503, True)])
def test_what_lets_another_cluster_try(status: int, away: bool) -> None:
    assert turned_away(status) is away


def test_the_client_hears_who_can_serve_it_soonest() -> None:
    assert soonest([None, 4.0, 2.0]) == 2
    assert soonest([None, None]) == 0
