"""Tables of the target: how many workers of each role, from the spec alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.world import make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide import make_target

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED


@pytest.mark.parametrize(
    ("pools", "ratio", "expected"),
    [
        # Without a ratio: the most, split evenly, prefill first.
        ([pool(high=4)], None, {P: 2, D: 2}),
        ([pool(high=3)], None, {P: 2, D: 1}),
        ([pool(high=2)], None, {P: 1, D: 1}),
        ([pool(high=1)], None, {M: 1}),
        ([pool(high=0)], None, {}),
        ([pool("a", high=2), pool("b", high=3)], None, {P: 3, D: 2}),
        ([pool("a", high=2), pool("b", high=6, roles=("decode",))], None, {P: 2, D: 6}),
        ([pool("a", high=2, roles=("prefill",)), pool("b", high=2, roles=("decode",))], None, {P: 2, D: 2}),
        ([pool("a", high=2, roles=("mixed",)), pool("b", high=2)], None, {M: 2, P: 1, D: 1}),
        ([pool(high=1, roles=("decode",))], None, {D: 1}),
        # With a ratio: exactly that, where the pools can.
        ([pool(high=4)], (1, 3), {P: 1, D: 3}),
        ([pool(high=4)], (3, 1), {P: 3, D: 1}),
        ([pool(high=8)], (1, 2), {P: 1, D: 2}),
        ([pool("a", high=4), pool("b", high=4, roles=("decode",))], (3, 5), {P: 3, D: 5}),
        # Proportionally, where they cannot.
        ([pool(high=4)], (3, 5), {P: 2, D: 2}),
        ([pool(high=4)], (2, 6), {P: 1, D: 3}),
        ([pool(high=4)], (1, 99), {P: 1, D: 3}),
        ([pool(high=4)], (99, 1), {P: 3, D: 1}),
        ([pool(low=6, high=8)], (1, 2), {P: 2, D: 4}),
        ([pool(high=1)], (3, 5), {M: 1}),
        # Never a role less than one.
        ([pool(low=2, high=2)], (1, 8), {P: 1, D: 1}),
        ([pool(low=2, high=2)], (8, 1), {P: 1, D: 1}),
        # What cannot flip has the last word.
        ([pool("a", high=1, roles=("prefill",)), pool("b", high=4, roles=("decode",))], (3, 2), {P: 1, D: 4}),
    ],
)
def test_counts(pools: list[dict[str, object]], ratio: tuple[int, int] | None, expected: dict[Role, int]) -> None:
    assert make_target(make_spec(*pools, ratio=ratio)).counts() == expected


@pytest.mark.parametrize("mode", ["Auto", "Observe"])
def test_the_goal_of_the_spec_alone_is_that_of_manual(mode: str) -> None:
    assert make_target(make_spec(pool(high=4), mode=mode, ratio=(1, 3))).counts() == {P: 1, D: 3}
    assert make_target(make_spec(pool(high=4), mode=mode)).counts() == {P: 2, D: 2}


_ROLES = [("prefill", "decode"), ("prefill",), ("decode",), ("mixed",)]


@st.composite
def specs(draw: st.DrawFn) -> InferenceClusterSpec:
    pools = []
    for index in range(draw(st.integers(1, 4))):
        low = draw(st.integers(0, 4))
        pools.append(
            pool(f"p{index}", low=low, high=low + draw(st.integers(0, 5)), roles=draw(st.sampled_from(_ROLES)))
        )
    ratio = draw(st.none() | st.tuples(st.integers(1, 12), st.integers(1, 12)))
    return make_spec(*pools, ratio=ratio)


@given(specs())
def test_target_is_within_every_bound(spec: InferenceClusterSpec) -> None:
    target = make_target(spec)
    flexible = 0
    for chosen in spec.pools:
        workers = target.in_pool(chosen.name)
        assert chosen.workers.min <= sum(workers.values()) <= chosen.workers.max
        flippable = {P, D} <= set(chosen.roles)
        assert all(role in chosen.roles or (flippable and workers == {M: 1}) for role in workers)
        flexible += sum(workers.values()) if flippable else 0
    counts = target.counts()
    assert sum(counts.values()) == target.total
    if flexible >= 2:
        assert counts.get(P, 0) >= 1
        assert counts.get(D, 0) >= 1
