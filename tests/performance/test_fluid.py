"""What layouts carry, were work a fluid."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.loads import speed
from tests.decide.small_workers import SPEED

from fulcrum.api.names import Role
from fulcrum.api.types import PoolAdmits
from fulcrum.capacity.kv import TransferCost
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout
from fulcrum.performance.reach import reachable

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.025, attainment=0.95)


def load(rate: float, isl: float = 2000.0, osl: float = 200.0, **changes: float) -> Load:
    return Load.of(Demand(rate=rate, isl_tokens=isl, osl_tokens=osl, **changes))  # type: ignore[arg-type]


def split(prefill: int, decode: int) -> Layout:
    return Layout.of(prefill={"a": prefill}, decode={"a": decode})


@given(rate=st.floats(0.1, 500), prefill=st.integers(1, 20), decode=st.integers(1, 20))
def test_the_scarcer_role_sets_what_a_split_carries(rate: float, prefill: int, decode: int) -> None:
    model, coming = FluidModel({"a": speed()}, SLO), load(rate)
    each = model.unit_rates("a", coming)
    carried = min(prefill * each.prefill, decode * each.decode)
    assert model.role_rate(split(prefill, decode), coming, Role.PREFILL) == pytest.approx(prefill * each.prefill)
    served = model.served(split(prefill, decode), coming)
    assert 0 < served <= min(carried / rate, 1.0)
    assert (served > 1 - 1e-9) == model.enough(split(prefill, decode), coming)


def test_mixed_workers_add_to_both_roles() -> None:
    model, coming = FluidModel({"a": speed()}, SLO), load(10.0)
    both, alone = Layout.of(mixed={"a": 3}), split(2, 2)
    beside = Layout.of(prefill={"a": 2}, decode={"a": 2}, mixed={"a": 3})
    assert model.room(beside, coming) == pytest.approx(model.room(both, coming) + model.room(alone, coming))


def test_a_promise_that_leaves_no_time_to_wait_takes_more_workers() -> None:
    coming = load(20.0)
    needed = [
        FluidModel({"a": speed()}, replace(SLO, ttft_seconds=seconds)).needed(coming)[Role.PREFILL]
        for seconds in (0.1, 0.5, 5.0)
    ]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] > 1.2 * needed[-1]


def test_bursts_take_more_workers() -> None:
    model = FluidModel({"a": speed()}, SLO)
    for role, rate in model.needed(load(20.0)).items():
        assert model.needed(load(20.0, dispersion=16.0))[role] > rate


@given(rate=st.floats(0.0, 200), more=st.floats(1.0, 3.0))
def test_more_load_needs_more(rate: float, more: float) -> None:
    model = FluidModel({"a": speed()}, SLO)
    for role, needed in model.needed(load(rate)).items():
        assert rate <= needed + 1e-9
        assert needed <= model.needed(load(rate * more))[role] + 1e-9


def test_an_incomplete_layout_is_never_enough() -> None:
    model = FluidModel({"a": speed()}, SLO)
    assert not model.enough(Layout.of(prefill={"a": 8}), load(0.0))
    assert model.enough(split(1, 1), load(0.0))
    assert model.served(Layout.of(decode={"a": 8}), load(1.0)) == 0.0


def test_a_pool_has_no_more_than_it_takes() -> None:
    """Two pools that share the prompts: one of them alone, however large, leaves some without a worker."""
    admits = {"short": PoolAdmits(max_prompt_tokens=2000), "long": PoolAdmits(min_prompt_tokens=2001)}
    model = FluidModel({"short": speed(), "long": speed(), "any": speed()}, SLO, admits=admits)
    coming = load(5.0)
    assert not model.enough(Layout.of(prefill={"short": 100}, decode={"any": 8}), coming)
    assert model.enough(Layout.of(prefill={"short": 8, "long": 8}, decode={"any": 8}), coming)


def test_a_pool_that_is_too_slow_even_when_idle_carries_nothing_where_another_is_not() -> None:
    speeds = {"slow": speed(prefill=0.1, decode=0.2), "fast": speed()}
    long = load(1.0, isl=4000.0)
    rates = FluidModel(speeds, SLO).unit_rates("slow", long)
    assert (rates.prefill, rates.decode, rates.mixed) == (0.0, 0.0, 0.0)
    alone = FluidModel({"slow": speeds["slow"]}, SLO).unit_rates("slow", long)
    assert min(alone.prefill, alone.decode, alone.mixed) > 0
    short = FluidModel(speeds, SLO).unit_rates("slow", load(1.0, isl=200.0))
    assert short.prefill > 0


def test_the_better_worker_for_a_role_gives_up_less_of_the_other_one() -> None:
    model = FluidModel({"a": speed(prefill=3.0), "b": speed(decode=3.0)}, SLO)
    for role, better in ((Role.PREFILL, "a"), (Role.DECODE, "b")):
        assert max("ab", key=lambda pool, role=role: model.advantage(pool, role, load(1.0))) == better  # type: ignore[misc]


def test_the_slower_end_counts_where_nothing_was_learnt() -> None:
    fast = SPEED.with_transfer(TransferCost(base_seconds=0.001, seconds_per_token=1e-6))
    slow = SPEED.with_transfer(TransferCost(base_seconds=0.002, seconds_per_token=1e-3))
    model = FluidModel({"fast": fast, "slow": slow}, SLO)
    for pair in (("fast", "slow"), ("slow", "fast")):
        assert model.transfer(*pair) == slow.transfer
    assert model.transfer("fast", "fast") == fast.transfer
    assert model.transfer("slow", "slow").seconds(1000) == pytest.approx(1.002)


def test_a_worker_carries_no_more_than_its_link() -> None:
    """A decode worker pulls one prompt after the other, however small its batch is."""
    link = TransferCost(base_seconds=0.0, seconds_per_token=2.5e-4)
    coming = load(3.0, osl=6.0)
    model = FluidModel({"a": speed().with_transfer(link)}, SLO)
    rates = model.unit_rates("a", coming)
    assert rates.prefill == rates.decode == pytest.approx(2.0)
    assert rates.mixed > 2.0
    half = load(3.0, osl=6.0, prefix_hit=0.5)
    assert model.unit_rates("a", half).decode == pytest.approx(4.0)


def test_what_was_learnt_of_a_link_counts_and_not_what_was_expected() -> None:
    expected = speed().with_transfer(TransferCost(base_seconds=0.0, seconds_per_token=0.1))
    learnt = FluidModel({"a": expected}, SLO, transfers={("a", "a"): speed().transfer})
    plain = FluidModel({"a": speed()}, SLO)
    for layout in (split(1, 1), Layout.of(prefill={"a": 1}, decode={"a": 1}, mixed={"a": 2})):
        assert learnt.room(layout, load(10.0)) == plain.room(layout, load(10.0))


def test_a_promise_within_reach_is_left_as_it_is() -> None:
    assert reachable({"a": speed()}, SLO, load(1)) == SLO
    wider = reachable({"a": speed()}, LatencyTargets(ttft_seconds=0.001, tpot_seconds=0.001, attainment=0.95), load(1))
    assert wider.ttft_seconds > 0.05
    assert wider.tpot_seconds > 0.008
    assert reachable({}, SLO, load(1)) == SLO


def test_the_longest_prompts_that_are_promised_count() -> None:
    """The same mean, and prompts four times as long among them."""
    tight = replace(SLO, ttft_seconds=0.1)
    assert reachable({"a": speed()}, tight, load(1, isl_cv2=0.0)) == tight
    assert reachable({"a": speed()}, tight, load(1, isl_cv2=2.0)).ttft_seconds > tight.ttft_seconds


@settings(max_examples=200, deadline=None)
@given(
    promise=st.builds(
        LatencyTargets,
        ttft_seconds=st.floats(1e-3, 1e4),
        tpot_seconds=st.floats(1e-4, 1e3),
        attainment=st.floats(1e-9, 1.0),
    ),
    demand=st.builds(
        Demand,
        rate=st.floats(0.0, 1e6),
        isl_tokens=st.floats(1.0, 1e6),
        osl_tokens=st.floats(1.0, 1e6),
        isl_cv2=st.floats(0.0, 1e3),
        prefix_hit=st.floats(0.0, 1.0),
        dispersion=st.floats(1.0, 1e5),
    ),
    memory=st.integers(1, 10**7),
    admits=st.sampled_from([{}, {"b": PoolAdmits(min_prompt_tokens=3000)}, {"b": PoolAdmits(max_prompt_tokens=1)}]),
)
def test_every_load_and_promise_comes_to_a_number(
    promise: LatencyTargets, demand: Demand, memory: int, admits: dict[str, PoolAdmits]
) -> None:
    coming = Load.of(demand)
    speeds = {"a": speed(kv_capacity_tokens=memory), "b": speed(prefill=0.01, decode=0.01)}
    model = FluidModel(speeds, reachable(speeds, promise, coming), promise=promise, admits=admits)
    assert promise.ttft_seconds <= model.slo.ttft_seconds < inf
    assert promise.tpot_seconds <= model.slo.tpot_seconds < inf
    for rate in model.needed(coming).values():
        assert demand.rate <= rate + 1e-6 < inf
    layout = Layout.of(prefill={"a": 2, "b": 1}, decode={"a": 1, "b": 2}, mixed={"b": 1})
    assert 0 <= model.served(layout, coming) <= 1
    assert model.enough(layout, coming) in (True, False)
