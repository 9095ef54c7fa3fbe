"""Layouts are judged by what moving KV costs between the pools that they put to work."""

from __future__ import annotations

import pytest
from tests.performance.test_model import SLO, SPEED, prompts

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel

SLOW = TransferCost(base_seconds=0.0, seconds_per_token=0.1)
BRISK = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0, prefill_b=2.5e-4, prefill_c=0.0, decode_a=0.02, decode_b=1e-4, decode_c=0.0
    ),
    kv_capacity_tokens=20_000,
)
"""20 prompts of 195 tokens a second."""


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


def test_the_role_with_fewer_workers_sets_how_much_kv_is_moved_at_a_time() -> None:
    """A prompt takes 0.5 s of a link, and a tenth of that of a prefill worker."""
    load = prompts(10.0)
    link = TransferCost(base_seconds=0.0, seconds_per_token=0.5 / load.prefill.isl_tokens)
    model = PerformanceModel({"a": BRISK.with_transfer(link)}, SLO, turns_away=True)
    carried = {
        (prefill, decode): model.goodput(Layout.of(prefill={"a": prefill}, decode={"a": decode}), load)
        for prefill, decode in ((1, 3), (3, 1), (2, 2), (2, 6), (4, 4))
    }
    for (prefill, decode), rate in carried.items():
        assert rate <= min(prefill, decode) / 0.5, (prefill, decode)
    assert carried[1, 3] == pytest.approx(carried[3, 1], rel=0.1)
    assert carried[2, 6] == pytest.approx(carried[2, 2], rel=0.1)
    assert carried[1, 3] < carried[2, 2] < carried[4, 4]


def test_what_was_learnt_bounds_what_is_looked_for_and_not_what_was_expected() -> None:
    """A link that is expected to be slow, and is not, carries what the workers do."""
    expected = BRISK.with_transfer(SLOW)
    learnt = PerformanceModel({"a": expected}, SLO, transfers={("a", "a"): BRISK.transfer})
    plain = PerformanceModel({"a": BRISK}, SLO)
    load = prompts(10.0)
    split = {"prefill": {"a": 1}, "decode": {"a": 1}}
    for layout in (Layout.of(**split), Layout.of(**split, mixed={"a": 2})):
        assert learnt.goodput(layout, load) == plain.goodput(layout, load)
        assert learnt.cover(layout, load) == plain.cover(layout, load)
