"""What pools take that do not take every request, and how many workers that makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.loads import speed

from fulcrum.api.names import Role
from fulcrum.api.types import PoolAdmits
from fulcrum.decide.cheapest import Size, cheapest
from fulcrum.decide.pools import PoolBounds
from fulcrum.load.demand import ClassPart, Demand, LatencyTargets, Load
from fulcrum.performance.eligible import eligible
from fulcrum.performance.fluid import FluidModel

SLO = LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.05, attainment=0.95)
CLASSES = (ClassPart("chat", 0.75, 0.5), ClassPart("batch", 0.25, 2.5))
LONG_BATCH = PoolAdmits(min_prompt_tokens=5000, classes=("batch",))


def demand(rate: float = 10.0, isl: float = 2000.0, cv2: float = 1.0, classes: tuple[ClassPart, ...] = ()) -> Demand:
    return Demand(rate=rate, isl_tokens=isl, osl_tokens=200.0, isl_cv2=cv2, classes=classes)


rules = st.builds(
    PoolAdmits,
    min_prompt_tokens=st.none() | st.integers(0, 2000),
    max_prompt_tokens=st.none() | st.integers(2000, 20_000),
    classes=st.sampled_from([(), ("chat",), ("batch",), ("chat", "batch")]),
)


@given(
    rule=rules,
    cv2=st.sampled_from([0.0, 0.3, 2.0]),
    classes=st.sampled_from([(), CLASSES]),
    isl=st.floats(50, 9000),
)
def test_what_a_pool_takes_is_a_part_of_what_comes(
    rule: PoolAdmits, cv2: float, classes: tuple[ClassPart, ...], isl: float
) -> None:
    whole = demand(isl=isl, cv2=cv2, classes=classes)
    share, taken = eligible(whole, "cpu", {"cpu": rule})
    assert 0 <= share <= 1 + 1e-9
    if share:
        assert taken.rate == pytest.approx(share * whole.rate)
        assert (rule.min_prompt_tokens or 0) - 1 <= taken.isl_tokens <= (rule.max_prompt_tokens or 1e9) + 1
        assert taken.classes == ()
    assert eligible(whole, "gpu", {"cpu": rule}) == (1.0, whole)


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (PoolAdmits(min_prompt_tokens=100_000_000), 0.0),
        (PoolAdmits(max_prompt_tokens=100_000_000), 1.0),
        (PoolAdmits(classes=("batch",)), 0.25),
        (PoolAdmits(classes=("chat", "batch")), 1.0),
    ],
)
def test_shares(rule: PoolAdmits, share: float) -> None:
    assert eligible(demand(cv2=2.0, classes=CLASSES), "cpu", {"cpu": rule})[0] == pytest.approx(share)


def test_a_bound_and_the_rest_are_all() -> None:
    short, long = PoolAdmits(max_prompt_tokens=2000), PoolAdmits(min_prompt_tokens=2001)
    found = [eligible(demand(), "cpu", {"cpu": rule}) for rule in (short, long)]
    assert sum(share for share, _ in found) == pytest.approx(1.0)
    assert sum(share * each.isl_tokens for share, each in found) == pytest.approx(2000.0)


def hybrid_size(classes: tuple[ClassPart, ...], *, cpus: int, rate: float = 10.0, isl: float = 3000.0) -> Size:
    """GPU workers for everything, and a pool on CPUs that prefills long prompts of the class batch."""
    speeds = {"gpu": speed(), "cpu": speed(prefill=0.15)}
    model = FluidModel(speeds, SLO, admits={"cpu": LONG_BATCH})
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
        (CLASSES, 16, 19),
        (CLASSES, 40, 16),
        ((ClassPart("chat", 1.0, 1.0),), 40, 22),
        ((), 40, 17),
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
    model = FluidModel({"short": speed(), "long": speed(), "any": speed()}, SLO, admits=admits)
    pools = [
        PoolBounds(name="short", role=Role.PREFILL, low=0, high=20),
        PoolBounds(name="long", role=Role.PREFILL, low=0, high=20),
        PoolBounds(name="any", role=Role.DECODE, low=0, high=20),
    ]
    each = demand(20.0)
    size = cheapest(pools, model, Load(rate=20.0, prefill=each, decode=each))
    assert size.enough
    assert size.layout.pools == {"short", "long", "any"}
