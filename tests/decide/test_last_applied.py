"""What the last decision wanted is found again from Pods and from the status."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.loads import measurements
from tests.decide.test_auto_properties import SPEEDS, Watch, comes_to_rest
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.decide.last_layout import LayoutSaid, last_layout
from fulcrum.decide.size import last_applied

POOLS = ("a", "b", "c")
ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)


@given(st.data())
def test_roles_that_workers_drain_from_are_the_only_ones_that_are_open(data: st.DataObject) -> None:
    """Whatever drains, in whichever pools: each role gets as many workers as it was to have, and no other one flips."""
    names = POOLS[: data.draw(st.integers(1, len(POOLS)))]
    roles = {name: data.draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=4), label=name) for name in names}
    spec = make_spec(*(pool(name, low=len(roles[name]), high=len(roles[name])) for name in names))
    world = World(spec)
    for action in world.plan().actions:
        world.do(action)
    goes = {name: data.draw(st.sets(st.integers(0, len(roles[name]) - 1)), label=f"draining {name}") for name in names}
    for name, wanted in roles.items():
        for ordinal, role in enumerate(wanted):
            world.set(f"c-{name}-{ordinal}", role=Role.DRAINING if ordinal in goes[name] else role)
    layout = last_layout(
        spec,
        {name: len(roles[name]) for name in names},
        workers=tuple(world.workers.values()),
        wanted={name: Counter(wanted) for name, wanted in roles.items()},
        speeds=SPEEDS,
    )
    assert {name: layout.in_pool(name) for name in names} == {name: Counter(wanted) for name, wanted in roles.items()}


@pytest.mark.parametrize(
    ("wanted", "there", "applied"),
    [
        ({"a": {Role.PREFILL: 2}, "b": {Role.DECODE: 2}}, {"a": 2, "b": 2}, {"a": 2, "b": 2}),
        # Gone without a trace: the status says in which pool it was.
        ({"a": {Role.PREFILL: 2}, "b": {Role.DECODE: 2}}, {"a": 1, "b": 2}, {"a": 2, "b": 2}),
        ({"a": {Role.PREFILL: 2}, "b": {Role.DECODE: 2}}, {"a": 2, "b": 0}, {"a": 2, "b": 2}),
        # Created, and killed before the status was written.
        ({"a": {Role.PREFILL: 2}, "b": {Role.DECODE: 2}}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        # The CRD is of a release that has no such field; a pool was renamed; bounds have changed.
        ({}, {"a": 2, "b": 1}, {"a": 2, "b": 1}),
        ({"a": {Role.PREFILL: 2}, "old": {Role.DECODE: 2}}, {"a": 2, "b": 0}, {"a": 2, "b": 1}),
        ({"a": {Role.PREFILL: 9}, "b": {Role.DECODE: 2}}, {"a": 2, "b": 2}, {"a": 4, "b": 2}),
    ],
)
def test_each_pool_has_what_was_wanted_of_it(
    wanted: LayoutSaid, there: dict[str, int], applied: dict[str, int]
) -> None:
    spec = make_spec(pool("a", low=0, high=4, roles=("prefill",)), pool("b", low=0, high=4, roles=("decode",)))
    world = World(make_spec(*(pool(name, low=count, high=count) for name, count in there.items())))
    for action in world.plan().actions:
        world.do(action)
    assert last_applied(spec, tuple(world.workers.values()), wanted) == applied


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(("isl", "osl"), [(1500.0, 250.0), (3000.0, 40.0), (150.0, 900.0)])
def test_one_of_two_pools_flips_once(order: tuple[str, str], isl: float, osl: float) -> None:
    spec = make_spec(
        *(pool(name, low=0, high={"a": 3, "b": 2}[name]) for name in order),
        mode="Auto",
        style="Drain",
        ratio=(2, 1),
        slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95},
    )
    world = World(spec)
    world.measurements = measurements(40.0, isl, osl, upper=60.0, peak_rate=40.0, speeds=SPEEDS)
    comes_to_rest(world, Watch(world))
