"""Shares of a canary."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.front.shares import Shares


def picks(shares: Shares, openings: list[bytes | None]) -> list[str]:
    picked = []
    for opening in openings:
        name = shares.pick(opening)
        assert name is not None
        shares.count(name)
        picked.append(name)
    return picked


@pytest.mark.parametrize("same", [False, True], ids=["different openings", "one opening"])
def test_canary_of_ten_percent_within_two_of_a_thousand(same: bool) -> None:
    openings: list[bytes | None] = [b"hello" if same else b"%d" % number for number in range(1000)]
    assert abs(Counter(picks(Shares({"a": 90, "b": 10}), openings))["b"] - 100) <= 2


def test_without_a_conversation_it_is_smooth_round_robin() -> None:
    assert picks(Shares({"a": 5, "b": 1, "c": 1}), [None] * 7) == ["a", "a", "b", "a", "c", "a", "a"]


def test_most_conversations_follow_their_hash_so_that_replicas_agree() -> None:
    shares = Shares({"a": 90, "b": 10})
    openings: list[bytes | None] = [b"%d" % number for number in range(1000)]
    led = [shares.led_to(opening or b"") for opening in openings]
    agreed = sum(one == other for one, other in zip(picks(shares, openings), led, strict=True))
    assert agreed >= 850


@given(
    weights=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 100), min_size=1),
    requests=st.lists(st.binary(max_size=3) | st.none(), max_size=300),
)
def test_every_share_is_kept_within_two_requests(weights: dict[str, int], requests: list[bytes | None]) -> None:
    shares, total = Shares(weights), sum(weights.values())
    if total == 0:
        assert shares.pick(b"x") is None
        return
    counts = Counter(picks(shares, requests))
    for name, weight in weights.items():
        assert abs(counts[name] - len(requests) * weight / total) <= max(2, len(weights))


def test_a_weight_that_changes_moves_no_hash_but_those_it_has_to() -> None:
    before, after = Shares({"a": 90, "b": 10}), Shares({"a": 80, "b": 20})
    openings = [b"%d" % number for number in range(2000)]
    moved = [
        (before.led_to(each), after.led_to(each)) for each in openings if before.led_to(each) != after.led_to(each)
    ]
    assert set(moved) == {("a", "b")}
    assert len(moved) < 300


def test_after_a_long_conversation_the_others_do_not_get_everything() -> None:
    shares = Shares({"a": 50, "b": 50})
    for _ in range(10_000):
        shares.count("a")
    assert "a" in picks(shares, [None] * 40)
