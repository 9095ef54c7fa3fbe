"""Layouts are judged by what moving KV costs between the pools that they put to work."""

from __future__ import annotations

import pytest
from tests.performance.test_model import SLO, SPEED, prompts

from fulcrum.capacity.kv import TransferCost
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel

SLOW = TransferCost(base_seconds=0.0, seconds_per_token=0.1)


def test_a_pair_with_a_slow_link_serves_nothing_in_time_and_others_go_on() -> None:
    speeds = {"a": SPEED, "b": SPEED, "c": SPEED}
    load = prompts(0.5)
    model = PerformanceModel(speeds, SLO, transfers={("a", "b"): SLOW})
    plain = PerformanceModel(speeds, SLO)
    slow, other = Layout.of(prefill={"a": 2}, decode={"b": 2}), Layout.of(prefill={"a": 2}, decode={"c": 2})
    back, mixed = Layout.of(prefill={"b": 2}, decode={"a": 2}), Layout.of(mixed={"a": 2, "b": 2})
    assert plain.goodput(slow, load) == plain.goodput(other, load) > 0
    assert model.goodput(slow, load) < 0.2 * plain.goodput(slow, load)
    for layout in (other, back, mixed):
        assert model.goodput(layout, load) == plain.goodput(layout, load)
    half = Layout.of(prefill={"a": 2}, decode={"b": 1, "c": 1})
    assert model.goodput(slow, load) < model.goodput(half, load) < plain.goodput(half, load)


def test_the_slower_end_counts_where_nothing_was_learnt() -> None:
    fast = SPEED.with_transfer(TransferCost(base_seconds=0.001, seconds_per_token=1e-6))
    slow = SPEED.with_transfer(TransferCost(base_seconds=0.002, seconds_per_token=1e-3))
    model = PerformanceModel({"fast": fast, "slow": slow}, SLO)
    for pair in (("fast", "slow"), ("slow", "fast")):
        assert model.transfer(*pair) == slow.transfer
    assert model.transfer("fast", "fast") == fast.transfer
    assert model.transfer("slow", "slow").seconds(1000) == pytest.approx(1.002)
