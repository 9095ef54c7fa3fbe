"""The search for sizes and splits, against trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.loads import speed

from fulcrum.api.names import Role
from fulcrum.api.types import Pool, WorkerCount
from fulcrum.decide.best_split import best_split
from fulcrum.decide.cheapest import Size, cheapest
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.025, attainment=0.95)


def load(rate: float, isl: float = 2000.0, osl: float = 200.0) -> Load:
    demand = Demand(rate=rate, isl_tokens=isl, osl_tokens=osl)
    return Load(rate=rate, prefill=demand, decode=demand)


def fewest(service: FluidModel, wanted: Load, most: int) -> int:
    """Try every split of one pool."""
    for total in range(2, most + 1):
        layouts = [Layout.of(prefill={"a": p}, decode={"a": total - p}) for p in range(1, total)]
        if any(service.enough(layout, wanted) for layout in layouts):
            return total
    return most


LOADS = [load(2), load(15), load(60), load(30, 4000, 30), load(10, 200, 1200), load(90, 500, 100)]


@pytest.mark.parametrize("wanted", LOADS)
def test_the_size_is_the_smallest(wanted: Load) -> None:
    service = FluidModel({"a": speed()}, SLO)
    size = cheapest([PoolBounds(name="a", role=None, low=0, high=40)], service, wanted)
    assert size.enough
    assert service.enough(size.layout, wanted)
    assert size.cost == fewest(service, wanted, 40)


@pytest.mark.parametrize("wanted", LOADS)
def test_as_mixed_ones_it_is_the_smallest_too(wanted: Load) -> None:
    service = FluidModel({"a": speed()}, SLO)
    size = cheapest([PoolBounds(name="a", role=None, low=0, high=40).as_mixed()], service, wanted)
    assert service.enough(Layout.of(mixed={"a": int(size.cost)}), wanted)
    assert size.cost == 1 or not service.enough(Layout.of(mixed={"a": int(size.cost) - 1}), wanted)


@pytest.mark.parametrize("wanted", [load(20), load(60), load(30, 4000, 30), load(10, 200, 1200), load(300, 500, 100)])
def test_the_split_has_most_room(wanted: Load) -> None:
    service = FluidModel({"a": speed()}, SLO)
    best = best_split([PoolBounds(name="a", role=None, low=0, high=10)], {"a": 10}, service, wanted)
    layouts = [Layout.of(prefill={"a": p}, decode={"a": 10 - p}) for p in range(1, 10)]
    assert service.room(best, wanted) == max(service.room(layout, wanted) for layout in layouts)


@pytest.mark.parametrize("workers", [{"slow": 1, "fast": 1}, {"slow": 2, "fast": 1}, {"slow": 2, "fast": 3}])
@pytest.mark.parametrize("wanted", [load(6, 4000, 20), load(20, 1000, 10), load(3, 3000, 400)])
def test_the_split_of_unlike_workers_has_most_room_or_nearly(workers: dict[str, int], wanted: Load) -> None:
    """Slow ones give up less decoding for a prompt, with little KV, and yet must decode where that is enough."""
    service = FluidModel({"slow": speed(prefill=0.3, kv_capacity_tokens=20_000), "fast": speed()}, SLO)
    pools = [PoolBounds(name=name, role=None, low=0, high=count) for name, count in workers.items()]
    best = best_split(pools, workers, service, wanted)
    layouts = [
        Layout.of(
            prefill={"slow": slow, "fast": fast},
            decode={"slow": workers["slow"] - slow, "fast": workers["fast"] - fast},
        )
        for slow in range(workers["slow"] + 1)
        for fast in range(workers["fast"] + 1)
    ]
    most = max(service.room(layout, wanted) for layout in layouts if layout.complete)
    assert service.room(best, wanted) >= 0.95 * most


def test_a_lone_worker_does_both_and_of_one_role_nothing_is_complete() -> None:
    service = FluidModel({"a": speed()}, SLO)
    alone = best_split([PoolBounds(name="a", role=None, low=1, high=1)], {"a": 1}, service, load(1))
    assert alone == Layout.of(mixed={"a": 1})
    assert not best_split([PoolBounds(name="a", role=Role.DECODE, low=1, high=4)], {"a": 2}, service, load(1)).complete


@pytest.mark.parametrize(
    ("prices", "bought"),
    [((None, None), "fast"), ((4.0, 1.0), "slow"), ((1.0, 1.0), "fast"), ((4.0, 3.0), "fast")],
    ids=["GPUs", "cheap ones pay", "alike", "cheap ones do not pay"],
)
def test_where_prices_are_set_the_cheapest_workers_are_taken(
    prices: tuple[float | None, float | None], bought: str
) -> None:
    model = FluidModel({"fast": speed(), "slow": speed(prefill=0.5, decode=0.5)}, SLO)
    pools = [
        bounds_of(
            Pool(name=name, accelerator="H100-SXM-80GB", workers=WorkerCount(max=40), price_per_hour=price),
            low=0,
            high=40,
        )
        for name, price in zip(("fast", "slow"), prices, strict=True)
    ]
    size = cheapest(pools, model, load(60))
    assert size.enough
    assert size.layout.pools == {bought}


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(1, 60),
    prices=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    unit=st.sampled_from([0.01, 2.0, 150.0]),
)
def test_what_is_bought_does_not_depend_on_the_currency(rate: float, prices: tuple[float, float], unit: float) -> None:
    model = FluidModel({"a": speed(), "b": speed(prefill=0.3, decode=0.8)}, SLO)

    def bought(factor: float) -> Size:
        costs = dict(zip("ab", prices, strict=True))
        pools = [PoolBounds(name=name, role=None, low=0, high=30, cost=costs[name] * factor) for name in "ab"]
        return cheapest(pools, model, load(rate))

    assert bought(unit).cost == pytest.approx(unit * bought(1.0).cost)


def test_more_than_there_is_comes_back_as_not_enough() -> None:
    service = FluidModel({"a": speed()}, SLO)
    size = cheapest([PoolBounds(name="a", role=None, low=1, high=4)], service, load(500))
    assert not size.enough
    assert size.layout.total == 4


def test_no_load_needs_one_worker() -> None:
    service = FluidModel({"a": speed()}, SLO)
    assert cheapest([PoolBounds(name="a", role=None, low=0, high=4).as_mixed()], service, load(0)).cost == 1
    rooms = [
        PoolBounds(name="a", role=Role.PREFILL, low=0, high=4),
        PoolBounds(name="b", role=Role.DECODE, low=0, high=4),
    ]
    both = FluidModel({"a": speed(), "b": speed()}, SLO)
    assert cheapest(rooms, both, load(0)).cost == 2
