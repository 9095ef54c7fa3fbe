"""The search for sizes and splits, against trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.loads import speed

from fulcrum.api.names import Role
from fulcrum.api.types import Pool, WorkerCount
from fulcrum.decide.best_split import splits
from fulcrum.decide.cheapest import Size, cheapest
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel, reachable

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.025, attainment=0.95)


def load(rate: float, isl: float = 2000.0, osl: float = 200.0) -> Load:
    demand = Demand(rate=rate, isl_tokens=isl, osl_tokens=osl)
    return Load(rate=rate, prefill=demand, decode=demand)


def fewest(service: PerformanceModel, wanted: Load, most: int) -> int:
    """Try every layout of one pool."""
    for total in range(1, most + 1):
        layouts = [Layout.of(prefill={"a": p}, decode={"a": total - p}) for p in range(1, total)]
        layouts.append(Layout.of(mixed={"a": total}))
        if any(service.attainment(layout, wanted) >= SLO.attainment for layout in layouts):
            return total
    return most


@pytest.mark.parametrize(
    "wanted", [load(2), load(15), load(60), load(30, 4000, 30), load(10, 200, 1200), load(90, 500, 100)]
)
def test_the_size_is_the_smallest_or_one_more(wanted: Load) -> None:
    service = PerformanceModel({"a": speed()}, SLO)
    size = cheapest([PoolBounds(name="a", role=None, low=0, high=40)], service, wanted)
    assert size.enough
    assert service.attainment(size.layout, wanted) >= SLO.attainment
    assert fewest(service, wanted, 40) <= size.cost <= fewest(service, wanted, 40) + 1


@pytest.mark.parametrize("wanted", [load(20), load(60), load(30, 4000, 30), load(10, 200, 1200), load(300, 500, 100)])
def test_the_split_serves_the_most_or_nearly(wanted: Load) -> None:
    service = PerformanceModel({"a": speed()}, SLO)
    (best, *_) = splits([PoolBounds(name="a", role=None, low=0, high=10)], {"a": 10}, service, wanted)
    layouts = [Layout.of(prefill={"a": p}, decode={"a": 10 - p}) for p in range(1, 10)]
    layouts.append(Layout.of(mixed={"a": 10}))
    most = max(service.goodput(layout, wanted) for layout in layouts)
    assert service.goodput(best, wanted) >= 0.98 * most


@pytest.mark.parametrize("workers", [{"slow": 1, "fast": 1}, {"slow": 2, "fast": 1}, {"slow": 2, "fast": 3}])
@pytest.mark.parametrize("wanted", [load(6, 4000, 20), load(20, 1000, 10), load(3, 3000, 400)])
def test_the_split_of_unlike_workers_serves_the_most_or_nearly(workers: dict[str, int], wanted: Load) -> None:
    """Slow ones give up less decoding for a prompt, with little KV, and yet must decode where that is enough."""
    service = PerformanceModel({"slow": speed(prefill=0.3, kv_capacity_tokens=20_000), "fast": speed()}, SLO)
    pools = [PoolBounds(name=name, role=None, low=0, high=count) for name, count in workers.items()]
    best = next(found for found in splits(pools, workers, service, wanted) if not found.mixed)
    layouts = [
        Layout.of(
            prefill={"slow": slow, "fast": fast},
            decode={"slow": workers["slow"] - slow, "fast": workers["fast"] - fast},
        )
        for slow in range(workers["slow"] + 1)
        for fast in range(workers["fast"] + 1)
    ]
    most = max(service.goodput(layout, wanted) for layout in layouts if layout.complete)
    assert service.goodput(best, wanted) >= 0.95 * most


def test_two_kinds_of_hardware_cost_no_more_than_the_best_combination() -> None:
    service = PerformanceModel({"a": speed(), "b": speed(prefill=0.3, decode=0.8)}, SLO)
    rooms = [
        PoolBounds(name="a", role=None, low=0, high=12, cost=2),
        PoolBounds(name="b", role=Role.DECODE, low=0, high=12),
    ]
    wanted = load(30)
    size = cheapest(rooms, service, wanted)
    assert size.enough
    best = min(
        2 * (p + d) + other
        for p in range(1, 8)
        for d in range(8)
        for other in range(12)
        if d + other
        and service.attainment(Layout.of(prefill={"a": p}, decode={"a": d, "b": other}), wanted) >= SLO.attainment
    )
    assert size.cost <= best + 1


@pytest.mark.parametrize(
    ("prices", "bought"),
    [((None, None), "fast"), ((4.0, 1.0), "slow"), ((1.0, 1.0), "fast"), ((4.0, 3.0), "fast")],
    ids=["GPUs", "cheap ones pay", "alike", "cheap ones do not pay"],
)
def test_where_prices_are_set_the_cheapest_workers_are_taken(
    prices: tuple[float | None, float | None], bought: str
) -> None:
    model = PerformanceModel({"fast": speed(), "slow": speed(prefill=0.5, decode=0.5)}, SLO)
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
    model = PerformanceModel({"a": speed(), "b": speed(prefill=0.3, decode=0.8)}, SLO)

    def bought(factor: float) -> Size:
        costs = dict(zip("ab", prices, strict=True))
        pools = [PoolBounds(name=name, role=None, low=0, high=30, cost=costs[name] * factor) for name in "ab"]
        return cheapest(pools, model, load(rate))

    assert bought(unit).cost == pytest.approx(unit * bought(1.0).cost)


def test_more_than_there_is_comes_back_as_not_enough() -> None:
    service = PerformanceModel({"a": speed()}, SLO)
    size = cheapest([PoolBounds(name="a", role=None, low=1, high=4)], service, load(500))
    assert not size.enough
    assert size.layout.total == 4


def test_no_load_needs_one_worker() -> None:
    service = PerformanceModel({"a": speed()}, SLO)
    assert cheapest([PoolBounds(name="a", role=None, low=0, high=4)], service, load(0)).cost == 1
    rooms = [
        PoolBounds(name="a", role=Role.PREFILL, low=0, high=4),
        PoolBounds(name="b", role=Role.DECODE, low=0, high=4),
    ]
    both = PerformanceModel({"a": speed(), "b": speed()}, SLO)
    assert cheapest(rooms, both, load(0)).cost == 2


def test_a_promise_within_reach_is_left_as_it_is() -> None:
    assert reachable({"a": speed()}, SLO, load(1)) == SLO
    wider = reachable({"a": speed()}, LatencyTargets(ttft_seconds=0.001, tpot_seconds=0.001, attainment=0.95), load(1))
    assert wider.ttft_seconds > 0.05
    assert wider.tpot_seconds > 0.008
