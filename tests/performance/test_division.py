"""Which requests go to which pools, where pools do not take every request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.loads import speed

from fulcrum.api.names import Role
from fulcrum.api.types import PoolAdmits
from fulcrum.decide.cheapest import Size, cheapest
from fulcrum.decide.pools import PoolBounds
from fulcrum.load.demand import ClassPart, Demand, LatencyTargets, Load
from fulcrum.performance.division import divide, eligible
from fulcrum.performance.layout import Layout, PoolCounts
from fulcrum.performance.model import PerformanceModel

SLO = LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.05, attainment=0.95)
CLASSES = (ClassPart("chat", 0.75, 0.5), ClassPart("batch", 0.25, 2.5))
LONG_BATCH = PoolAdmits(min_prompt_tokens=5000, classes=("batch",))
RATES = {"gpu": 10.0, "cpu": 1.0, "other": 4.0}


def demand(rate: float = 10.0, isl: float = 2000.0, cv2: float = 1.0, classes: tuple[ClassPart, ...] = ()) -> Demand:
    return Demand(rate=rate, isl_tokens=isl, osl_tokens=200.0, isl_cv2=cv2, classes=classes)


def capacity(pool: str, of: Demand) -> float:
    return RATES[pool] * 2000.0 / of.isl_tokens


rules = st.builds(
    PoolAdmits,
    min_prompt_tokens=st.none() | st.integers(0, 2000),
    max_prompt_tokens=st.none() | st.integers(2000, 20_000),
    classes=st.sampled_from([(), ("chat",), ("batch",), ("chat", "batch")]),
)


@given(
    admits=st.dictionaries(st.sampled_from(["cpu", "other"]), rules),
    cv2=st.sampled_from([0.0, 0.3, 2.0]),
    classes=st.sampled_from([(), CLASSES]),
    isl=st.floats(50, 9000),
)
def test_every_request_goes_to_one_pool_that_takes_it(
    admits: Mapping[str, PoolAdmits], cv2: float, classes: tuple[ClassPart, ...], isl: float
) -> None:
    counts: PoolCounts = (("cpu", 3), ("gpu", 2), ("other", 1))
    whole = demand(isl=isl, cv2=cv2, classes=classes)
    parts = divide(whole, counts, admits, capacity)
    assert sum(part.share for part in parts) == pytest.approx(1.0, abs=1e-4)
    assert sum(part.share * part.demand.isl_tokens for part in parts) == pytest.approx(isl, rel=1e-2)
    assert all(part.demand.rate == pytest.approx(part.share * whole.rate) for part in parts)
    for part in parts:
        for pool, _ in part.counts:
            share, taken = eligible(whole, pool, admits)
            assert part.share <= share + 1e-6
            rule = admits.get(pool, PoolAdmits())
            assert (rule.min_prompt_tokens or 0) - 1 <= part.demand.isl_tokens
            assert part.demand.isl_tokens <= (rule.max_prompt_tokens or 1e9) + 1
            assert taken.classes == () or pool not in admits


@given(order=st.permutations([("cpu", 3), ("gpu", 2), ("other", 1)]))
def test_the_order_of_the_pools_does_not_matter(order: list[tuple[str, int]]) -> None:
    admits = {"cpu": LONG_BATCH, "other": PoolAdmits(max_prompt_tokens=4096)}

    def shares(counts: PoolCounts) -> dict[str, float]:
        parts = divide(demand(classes=CLASSES), counts, admits, capacity)
        return {pool: part.share for part in parts for pool, _ in part.counts}

    assert shares(tuple(order)) == pytest.approx(shares((("cpu", 3), ("gpu", 2), ("other", 1))))


@pytest.mark.parametrize(
    ("admits", "shares"),
    [
        ({}, {"cpu gpu": 1.0}),
        ({"cpu": PoolAdmits(min_prompt_tokens=100_000_000)}, {"gpu": 1.0}),
        ({"cpu": PoolAdmits(classes=("batch",))}, {"cpu": 0.25 * 8 / 55, "gpu": 1 - 0.25 * 8 / 55}),
        ({"cpu": PoolAdmits(classes=("batch",)), "gpu": PoolAdmits(classes=("chat",))}, {"cpu": 0.25, "gpu": 0.75}),
        ({"cpu": PoolAdmits(classes=("chat",)), "gpu": PoolAdmits(classes=("chat",))}, {"cpu gpu": 0.75}),
    ],
    ids=["no rule", "no such prompt", "as busy as the others", "each its own", "none takes some"],
)
def test_shares(admits: Mapping[str, PoolAdmits], shares: Mapping[str, float]) -> None:
    parts = divide(demand(cv2=2.0, classes=CLASSES), (("cpu", 2), ("gpu", 2)), admits, capacity)
    found = {" ".join(pool for pool, _ in part.counts): part.share for part in parts}
    assert found == pytest.approx(shares)


def test_a_rule_that_takes_everything_changes_no_estimate() -> None:
    speeds = {"a": speed(), "b": speed(prefill=0.3, decode=0.8)}
    layout = Layout.of(prefill={"a": 2}, decode={"a": 1, "b": 3})
    load = Load(rate=8.0, prefill=demand(8.0), decode=demand(8.0))
    plain = PerformanceModel(speeds, SLO)
    ruled = PerformanceModel(speeds, SLO, admits={"b": PoolAdmits(max_prompt_tokens=16_000_000)})
    assert ruled.attainment(layout, load) == pytest.approx(plain.attainment(layout, load), abs=0.03)


def hybrid_size(classes: tuple[ClassPart, ...], *, cpus: int, rate: float = 10.0, isl: float = 3000.0) -> Size:
    """GPU workers for everything, and a pool on CPUs that prefills long prompts of the class batch."""
    speeds = {"gpu": speed(), "cpu": speed(prefill=0.15)}
    model = PerformanceModel(speeds, SLO, admits={"cpu": LONG_BATCH})
    pools = [
        PoolBounds(name="gpu", role=None, low=0, high=60, cost=10.0),
        PoolBounds(name="cpu", role=Role.PREFILL, low=cpus, high=cpus, cost=0.1),
    ]
    each = demand(rate, isl, classes=classes)
    return cheapest(pools, model, Load(rate=rate, prefill=each, decode=each))


@pytest.mark.parametrize(
    ("classes", "cpus", "gpu_workers"),
    [
        (CLASSES, 0, 22),
        (CLASSES, 16, 20),
        (CLASSES, 40, 17),
        ((ClassPart("chat", 1.0, 1.0),), 40, 22),
        ((), 40, 18),
    ],
    ids=["none", "some", "many", "no request is for them", "classes are not known"],
)
def test_cpus_for_long_batch_prompts_replace_as_many_gpus_as_such_prompts_need(
    classes: tuple[ClassPart, ...], cpus: int, gpu_workers: int
) -> None:
    size = hybrid_size(classes, cpus=cpus, rate=150.0)
    assert size.enough
    assert size.cost == pytest.approx(10.0 * gpu_workers)


def test_pools_of_which_each_takes_some_are_all_used() -> None:
    admits = {"short": PoolAdmits(max_prompt_tokens=2000), "long": PoolAdmits(min_prompt_tokens=2001)}
    model = PerformanceModel({"short": speed(), "long": speed(), "any": speed()}, SLO, admits=admits)
    pools = [
        PoolBounds(name="short", role=Role.PREFILL, low=0, high=20),
        PoolBounds(name="long", role=Role.PREFILL, low=0, high=20),
        PoolBounds(name="any", role=Role.DECODE, low=0, high=20),
    ]
    each = demand(20.0)
    size = cheapest(pools, model, Load(rate=20.0, prefill=each, decode=each))
    assert size.enough
    assert size.layout.pools == {"short", "long", "any"}


def test_mixed_workers_that_take_some_get_no_more_than_these() -> None:
    speeds = {"gpu": speed(), "cpu": speed(prefill=0.3, decode=0.5)}
    layout = Layout.of(prefill={"gpu": 2}, decode={"gpu": 2}, mixed={"cpu": 40})
    load = Load(rate=20.0, prefill=demand(20.0), decode=demand(20.0))
    without = PerformanceModel(speeds, SLO).attainment(Layout.of(prefill={"gpu": 2}, decode={"gpu": 2}), load)
    long = PerformanceModel(speeds, SLO, admits={"cpu": PoolAdmits(min_prompt_tokens=8000)}).attainment(layout, load)
    none = PerformanceModel(speeds, SLO, admits={"cpu": PoolAdmits(min_prompt_tokens=10**7)}).attainment(layout, load)
    assert none == pytest.approx(without, abs=1e-6)
    assert long >= without - 0.01
