"""Which share of what a pool prefills is decoded where, as the status says it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.loads import peak, speed, traffic
from tests.decide.world import World, make_spec, pool

from fulcrum.api.types import KvRoute, PoolAdmits
from fulcrum.capacity.kv import TransferCost
from fulcrum.decide.kv_routes import kv_routes
from fulcrum.decide.measurements import Measurements
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.025, attainment=0.95)
DEMAND = Demand(rate=5.0, isl_tokens=2000.0, osl_tokens=200.0)
LOAD = Load(rate=5.0, prefill=DEMAND, decode=DEMAND)
SPEEDS = {"p": speed(), "fast": speed(), "slow": speed(decode=0.5)}


def routes(layout: Layout, *standing: KvRoute, **admits: PoolAdmits) -> dict[tuple[str, str], float]:
    model = FluidModel(SPEEDS, SLO, admits=admits)
    return {(each.prefill, each.decode): each.share for each in kv_routes(layout, model, LOAD, standing)}


def test_shares_are_as_what_the_workers_carry() -> None:
    model = FluidModel(SPEEDS, SLO)
    fast, slow = (model.unit_rates(name, LOAD).decode for name in ("fast", "slow"))
    found = routes(Layout.of(prefill={"p": 2}, decode={"fast": 1, "slow": 3}))
    assert found == {
        ("p", "fast"): pytest.approx(fast / (fast + 3 * slow), abs=1e-3),
        ("p", "slow"): pytest.approx(3 * slow / (fast + 3 * slow), abs=1e-3),
    }


@pytest.mark.parametrize("seconds", [0.2, 0.4, 0.6])
def test_no_more_is_sent_over_a_slow_link_than_it_carries(seconds: float) -> None:
    """A mean prompt takes so long over it; what takes longer than the promise of 0.5 s is not sent at all."""
    link = TransferCost(base_seconds=0.0, seconds_per_token=seconds / DEMAND.isl_tokens)
    model = FluidModel(SPEEDS, SLO, transfers={("p", "fast"): link})
    slow = 3 * model.unit_rates("slow", LOAD).decode
    assert model.unit_rates("fast", LOAD).decode > 1 / seconds
    over = 1 / seconds if seconds < SLO.ttft_seconds else 0.0
    found = kv_routes(Layout.of(prefill={"p": 2}, decode={"fast": 1, "slow": 3}), model, LOAD, ())
    assert {each.decode: each.share for each in found} == {
        "fast": pytest.approx(over / (over + slow), abs=1e-3),
        "slow": pytest.approx(slow / (over + slow), abs=1e-3),
    }


def test_where_all_links_are_too_slow_gateways_choose() -> None:
    link = TransferCost(base_seconds=1.0, seconds_per_token=0.0)
    model = FluidModel(SPEEDS, SLO, transfers={("p", "fast"): link, ("p", "slow"): link})
    assert kv_routes(Layout.of(prefill={"p": 2}, decode={"fast": 1, "slow": 3}), model, LOAD, ()) == ()


def test_without_a_choice_there_are_none() -> None:
    assert routes(Layout.of(prefill={"p": 2}, decode={"fast": 1})) == {}
    assert routes(Layout.of(mixed={"p": 2})) == {}
    apart = {"p": PoolAdmits(max_prompt_tokens=1000), "slow": PoolAdmits(min_prompt_tokens=1001)}
    assert routes(Layout.of(prefill={"p": 2}, decode={"fast": 1, "slow": 3}), **apart) == {}


@given(
    fast=st.integers(1, 8), slow=st.integers(1, 8), prefill=st.dictionaries(st.sampled_from(["p", "fast"]), st.just(1))
)
def test_what_a_pool_prefills_goes_somewhere(fast: int, slow: int, prefill: dict[str, int]) -> None:
    found = routes(Layout.of(prefill=prefill, decode={"fast": fast, "slow": slow}))
    for source in prefill:
        assert sum(share for (name, _), share in found.items() if name == source) == pytest.approx(1.0, abs=2e-3)


def test_a_small_change_is_not_written() -> None:
    layout = Layout.of(prefill={"p": 2}, decode={"fast": 4, "slow": 4})
    model = FluidModel(SPEEDS, SLO)
    (first, second) = kv_routes(layout, model, LOAD, ())
    near = (
        KvRoute(prefill="p", decode="fast", share=round(first.share + 0.02, 3)),
        KvRoute(prefill="p", decode="slow", share=round(second.share - 0.02, 3)),
    )
    assert kv_routes(layout, model, LOAD, near) == near
    far = (replace_share(near[0], 0.2), replace_share(near[1], 0.8))
    assert kv_routes(layout, model, LOAD, far) == (first, second)


def replace_share(route: KvRoute, share: float) -> KvRoute:
    return KvRoute(prefill=route.prefill, decode=route.decode, share=share)


@pytest.mark.parametrize(("mode", "published"), [("Auto", True), ("Observe", False), ("Manual", False)])
def test_the_status_has_them_in_auto_alone(mode: str, published: bool) -> None:
    pools = [
        pool("p", low=1, high=1, roles=("prefill",)),
        pool("fast", low=1, high=1, roles=("decode",)),
        pool("slow", low=1, high=1, roles=("decode",)),
    ]
    world = World(make_spec(*pools, mode=mode))
    world.measurements = Measurements(traffic=traffic(0.5), peak=peak(0.5), speeds=SPEEDS)
    for action in world.plan().actions:
        world.do(action)
    for name in list(world.workers):
        world.start(name)
    status = world.plan().status
    assert bool(status.routes) is published
    world.measurements = replace(world.measurements, traffic=None)
    assert bool(world.plan().status.routes) is published
