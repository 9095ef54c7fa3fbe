"""Which layouts are worth a play."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rehearsal.worlds import SLO, SPEED, split
from tests.simulation.worlds import make_speed

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.rehearsal.candidates import candidates

PROMPTS = np.array([400.0, 1600.0, 5000.0, 200.0])
OUTPUTS = np.array([31.0, 7.0, 200.0, 12.0])
counts = st.integers(0, 6)


def linear(prefill_seconds: float, batch: float) -> WorkerSpeed:
    """A worker whose seconds per prompt do not depend on it, and whose batch at the promised pace is `batch`."""
    return make_speed(
        prefill=(prefill_seconds, 0.0, 0.0),
        decode=(0.1, (SLO.tpot_seconds - 0.1) / batch, 0.0),
        kv_capacity_tokens=100_000_000,
    )


def found(standing: Layout, speeds: Mapping[str, WorkerSpeed], flexible: set[str] | None = None) -> list[Layout]:
    return candidates(
        standing, speeds, PROMPTS, OUTPUTS, SLO.tpot_seconds, flexible=standing.pools if flexible is None else flexible
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One to three pools with workers in any roles, so that requests are served."""
    pools = ["p", "q", "r"][: draw(st.integers(1, 3))]
    roles = [{pool: draw(counts) for pool in pools} for _ in ROLES]
    layout = Layout.of(prefill=roles[0], decode=roles[1], mixed=roles[2])
    return layout if layout.complete else Layout.of(mixed={"p": 1})


@settings(max_examples=40)
@given(standing=layouts(), flexible=st.sets(st.sampled_from(["p", "q", "r", "gone"])), data=st.data())
def test_candidates_are_other_layouts_of_the_same_workers(
    standing: Layout, flexible: set[str], data: st.DataObject
) -> None:
    speeds = {
        pool: linear(data.draw(st.floats(0.01, 5.0)), data.draw(st.floats(1.0, 200.0))) for pool in standing.pools
    }
    layouts = found(standing, speeds, flexible)
    assert len(set(layouts)) == len(layouts)
    assert standing not in layouts
    for layout in layouts:
        assert layout.complete
        for pool in standing.pools:
            assert sum(layout.in_pool(pool).values()) == sum(standing.in_pool(pool).values())
            if pool not in flexible:
                assert layout.in_pool(pool) == standing.in_pool(pool)
    if len(standing.pools) == 1:
        assert len(layouts) <= 15


def test_nothing_to_choose_where_no_pool_flips_or_one_worker_does_all() -> None:
    assert found(split(3, 5), {"p": SPEED}, set()) == []
    assert found(Layout.of(mixed={"p": 1}), {"p": SPEED}) == []


def test_all_mixed_is_played_and_left() -> None:
    mixed = Layout.of(mixed={"p": 6})
    assert mixed in found(split(2, 4), {"p": SPEED})
    assert {layout.count(Role.MIXED) for layout in found(mixed, {"p": SPEED})} == {0}


def test_neighbours_of_what_stands_are_played() -> None:
    """One worker, two, and a quarter of all: whatever the fluid optimum is."""
    prefilling = {layout.count(Role.PREFILL) for layout in found(split(14, 10), {"p": SPEED})}
    assert {8, 12, 13, 15, 16, 20} <= prefilling


@pytest.mark.parametrize("workers", range(3, 65))
def test_one_worker_of_either_role_is_played_from_wherever_it_stands(workers: int) -> None:
    """In an overload either can be best, and all splits between them worse."""
    for stands, prefill_seconds in ((1, 1e-4), (workers - 1, 1e4)):
        layouts = found(split(stands, workers - stands), {"p": linear(prefill_seconds, 50.0)})
        prefilling = {layout.count(Role.PREFILL) for layout in layouts}
        assert {1, workers - 1} <= prefilling | {stands}


def fluid(layout: Layout, seconds: Mapping[str, tuple[float, float]]) -> float:
    """Requests per second that the scarcer role carries."""
    rates = [
        sum(workers / seconds[pool][place] for pool, workers in layout.of_role(role))
        for place, role in enumerate((Role.PREFILL, Role.DECODE))
    ]
    return min(rates)


def best_split(sizes: Mapping[str, int], seconds: Mapping[str, tuple[float, float]], fixed: Layout) -> float:
    """The highest rate of all splits."""
    rates = []
    for prefill in product(*(range(size + 1) for size in sizes.values())):
        layout = fixed.plus(
            change
            for (pool, size), each in zip(sizes.items(), prefill, strict=True)
            for change in ((pool, Role.PREFILL, each), (pool, Role.DECODE, size - each))
        )
        rates.append(fluid(layout, seconds))
    return max(rates)


def of_linear(prefill_seconds: float, batch: float) -> tuple[float, float]:
    """Seconds of prefill and of decode of a mean request: the whole batch goes on once per promised time of a token."""
    return prefill_seconds, float((OUTPUTS - 1).mean()) * SLO.tpot_seconds / batch


def best_found(standing: Layout, kinds: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """The highest fluid rate of what may be chosen, and of all splits."""
    seconds = {pool: of_linear(*kind) for pool, kind in kinds.items()}
    sizes = {pool: sum(standing.in_pool(pool).values()) for pool in sorted(standing.pools)}
    layouts = [standing, *found(standing, {pool: linear(*kind) for pool, kind in kinds.items()})]
    return max(fluid(layout, seconds) for layout in layouts), best_split(sizes, seconds, Layout())


@settings(max_examples=40)
@given(
    workers=st.integers(2, 30), standing=st.integers(1, 29), prefill=st.floats(0.01, 20.0), batch=st.floats(1.0, 200.0)
)
def test_the_best_split_of_a_pool_is_among_them(workers: int, standing: int, prefill: float, batch: float) -> None:
    stands = min(standing, workers - 1)
    best, brute = best_found(split(stands, workers - stands), {"p": (prefill, batch)})
    assert best == pytest.approx(brute)


@pytest.mark.parametrize("seed", range(20))
def test_next_to_the_best_split_of_unlike_pools_is_among_them(seed: int) -> None:
    """Comparative advantage is exact but for whole workers."""
    random = np.random.default_rng(seed)
    pools = ["p", "q", "r"][: int(random.integers(2, 4))]
    kinds = {pool: (float(random.uniform(0.2, 3.0)), float(random.uniform(2.0, 60.0))) for pool in pools}
    standing = Layout.of(
        prefill={pool: int(random.integers(1, 5)) for pool in pools},
        decode={pool: int(random.integers(1, 5)) for pool in pools},
    )
    best, brute = best_found(standing, kinds)
    assert 0.97 * brute <= best <= brute * (1 + 1e-9)


def test_what_other_pools_carry_counts() -> None:
    """Ten workers only prefill. Forty are free and as good at both: with fifteen of them the roles are level at 25."""
    pace = float((OUTPUTS - 1).mean()) * SLO.tpot_seconds
    speeds = {"fixed": linear(1.0, pace), "free": linear(1.0, pace)}
    seconds = dict.fromkeys(speeds, (1.0, 1.0))
    standing = Layout.of(prefill={"fixed": 10, "free": 30}, decode={"free": 10})
    layouts = [standing, *found(standing, speeds, {"free"})]
    assert best_split({"free": 40}, seconds, Layout.of(prefill={"fixed": 10})) == 25.0
    assert max(fluid(layout, seconds) for layout in layouts) == pytest.approx(25.0)


def test_many_pools_have_few_candidates() -> None:
    """Not one for each combination of roles."""
    pools = [f"p{number}" for number in range(16)]
    standing = Layout.of(prefill=dict.fromkeys(pools, 2), decode=dict.fromkeys(pools, 2))
    speeds = {pool: linear(0.5 + number, 20.0) for number, pool in enumerate(pools)}
    assert 0 < len(found(standing, speeds)) < 16 * len(pools)


def test_two_workers_do_not_swap_their_roles() -> None:
    """One role would be without any meanwhile."""
    standing = Layout.of(prefill={"p": 1}, decode={"q": 1})
    speeds = {"p": linear(1.0, 20.0), "q": linear(0.1, 20.0)}
    assert found(standing, speeds) == [Layout.of(mixed={"p": 1, "q": 1})]
