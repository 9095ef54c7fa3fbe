"""Mode External: what InferenceScales ask for, within the bounds, by flips first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.world import World, make_spec, pool
from tests.report.test_plan_properties import QUIET

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.external import apportion
from fulcrum.decide.measurements import Callers, Measurements
from fulcrum.decide.snapshot import served_roles
from fulcrum.rollout import CreateWorker, SetRole, StartDrain, TellRole

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
BOTH = ("prefill", "decode")


def external(*pools: dict[str, Any], **others: Any) -> InferenceClusterSpec:
    return make_spec(*pools, mode="External", **others)


def running(spec: InferenceClusterSpec, **asked: int) -> World:
    """A world at rest with what was asked for (`prefill=2`), in pool p, and past every dwell time."""
    world = World(spec)
    world.asked = {("p", Role(role)): count for role, count in asked.items()}
    world.settle()
    world.pass_time(60)
    return world


@pytest.mark.parametrize(
    ("counts", "total", "shares"),
    [
        ({P: 4, D: 5}, 8, {P: 4, D: 4}),
        ({P: 9, D: 1}, 4, {P: 3, D: 1}),
        ({P: 1, D: 30}, 4, {P: 1, D: 3}),
        ({P: 0, D: 9}, 4, {P: 0, D: 4}),
        ({P: 1, D: 1}, 1, {P: 1, D: 0}),
        ({P: 1, D: 1}, 5, {P: 3, D: 2}),
        ({P: 0, D: 0}, 3, {P: 2, D: 1}),
        ({M: 9}, 4, {M: 4}),
        ({}, 0, {}),
    ],
)
def test_shares(counts: dict[Role, int], total: int, shares: dict[Role, int]) -> None:
    assert apportion(counts, total) == shares


def test_a_new_cluster_has_one_worker_of_each_role_and_its_scales_begin_with_them() -> None:
    world = World(external(pool("p", high=8, roles=BOTH)))
    assert [(each.role, each.asked, each.desired, each.limit) for each in world.plan().scales] == [
        (P, 1, 1, ""),
        (D, 1, 1, ""),
    ]
    world.settle()
    assert world.roles() == {P: 1, D: 1}


def test_scales_begin_with_what_stands() -> None:
    world = World(make_spec(pool("p", high=5, roles=BOTH), ratio=(2, 3)))
    world.settle()
    world.spec = external(pool("p", high=8, roles=BOTH))
    decided = world.plan()
    assert decided.actions == ()
    assert {each.role: each.asked for each in decided.scales} == {P: 2, D: 3}


def test_a_shift_between_roles_is_a_flip_and_no_start() -> None:
    world = running(external(pool("p", high=8, roles=BOTH)), prefill=2, decode=4)
    world.asked = {("p", P): 4, ("p", D): 2}
    actions = world.plan().actions
    assert {type(action) for action in actions} == {SetRole}
    assert {action.reason for action in actions} == {Reason.SCALE_REQUESTED}
    world.settle()
    assert world.roles() == {P: 4, D: 2}
    assert len(world.workers) == 6


def test_one_role_grows_by_a_flip_and_a_start_where_the_other_shrinks_by_less() -> None:
    world = running(external(pool("p", high=8, roles=BOTH)), prefill=2, decode=3)
    world.asked = {("p", P): 4, ("p", D): 2}
    actions = world.plan().actions
    assert [action.role for action in actions if isinstance(action, SetRole)] == [P]
    assert [action.role for action in actions if isinstance(action, CreateWorker)] == [P]


def test_fewer_workers_drain_from_the_role_that_shrinks() -> None:
    world = running(external(pool("p", high=8, roles=BOTH)), prefill=2, decode=4)
    world.asked = {("p", P): 2, ("p", D): 2}
    drained = [action for action in world.plan().actions if isinstance(action, StartDrain)]
    assert [(action.from_role, action.reason) for action in drained] == [(D, Reason.SCALE_REQUESTED)] * 2
    world.settle()
    assert world.roles() == {P: 2, D: 2}


def test_a_worker_that_was_just_flipped_waits_for_its_dwell_time() -> None:
    world = running(external(pool("p", high=6, roles=BOTH), dwell="30s"), prefill=2, decode=4)
    world.asked = {("p", P): 3, ("p", D): 3}
    world.settle()
    (moved,) = (worker.name for worker in world.workers.values() if worker.role_since is not None)
    world.asked = {("p", P): 2, ("p", D): 4}
    flipped = {action.name for action in world.plan().actions if isinstance(action, SetRole)}
    assert flipped
    assert moved not in flipped
    world.asked = {("p", P): 5, ("p", D): 1}
    world.pass_time(60)
    assert {type(action) for action in world.plan().actions} == {SetRole}


@pytest.mark.parametrize(
    ("bounds", "asked", "desired", "said"),
    [
        ((0, 8), (6, 4), (5, 3), "ask for 10 workers in all; workers.max is 8 workers"),
        ((2, 8), (1, 0), (1, 1), "ask for 1 workers in all; workers.min is 2 workers"),
        ((4, 8), (1, 1), (2, 2), "ask for 2 workers in all; workers.min is 4 workers"),
        ((0, 8), (0, 3), (1, 3), "No role is left without a worker"),
        ((0, 3), (0, 3), (1, 2), "No role is left without a worker"),
        ((0, 8), (0, 0), (1, 1), "No role is left without a worker"),
        ((0, 8), (3, 5), (3, 5), ""),
    ],
)
def test_bounds_win_and_say_so(
    bounds: tuple[int, int], asked: tuple[int, int], desired: tuple[int, int], said: str
) -> None:
    world = World(external(pool("p", low=bounds[0], high=bounds[1], roles=BOTH)))
    world.asked = {("p", P): asked[0], ("p", D): asked[1]}
    scales = {each.role: each for each in world.plan().scales}
    assert (scales[P].desired, scales[D].desired) == desired
    assert said in " ".join(each.limit for each in scales.values())
    assert all(bool(each.limit) == (each.asked != each.desired) for each in scales.values())
    world.settle()
    assert world.roles() == {role: count for role, count in zip((P, D), desired, strict=True) if count}


def test_the_limit_names_the_gpus() -> None:
    gpus = {**pool("p", high=4, roles=BOTH), "accelerator": "H100-SXM-80GB", "parallelism": {"tensor": 2}}
    world = World(external(gpus))
    world.asked = {("p", P): 4, ("p", D): 4}
    assert "ask for 8 workers (16 GPUs) in all; workers.max is 4 workers (8 GPUs)" in world.plan().scales[0].limit


def test_a_pool_with_room_for_one_worker_has_one_that_does_both() -> None:
    world = World(external(pool("p", high=1)))
    world.settle()
    assert world.roles() == {M: 1}


def test_a_mixed_pool_has_one_scale() -> None:
    world = World(external(pool("p", high=4, roles=("mixed",))))
    world.asked = {("p", M): 3}
    assert [(each.role, each.desired) for each in world.plan().scales] == [(M, 3)]
    world.settle()
    assert world.roles() == {M: 3}


def test_a_pool_that_is_switched_off_has_no_scale() -> None:
    world = World(external(pool("p", high=4, roles=BOTH), pool("off", high=0, roles=("decode",))))
    assert {each.pool for each in world.plan().scales} == {"p"}


def test_a_calm_changes_nothing_that_an_autoscaler_asked_for() -> None:
    world = running(external(pool("p", high=8, roles=BOTH)), prefill=2, decode=3)
    world.measurements = Measurements(callers=Callers(quiet_seconds=86_400.0))
    for asked in ((2, 3), (0, 0)):
        world.asked = {("p", P): asked[0], ("p", D): asked[1]}
        world.settle()
        for _ in range(24):
            world.pass_time(3600)
            result = world.plan()
            assert (result.actions, result.status.sleep) == ((), None)
        assert all(world.roles().get(role, 0) == max(1, count) for role, count in zip((P, D), asked, strict=True))


def test_other_modes_have_no_scales() -> None:
    assert World(make_spec()).plan().scales == ()


ASKED = st.tuples(st.integers(0, 9), st.integers(0, 9))
EVENTS = st.sampled_from(("pause", "crash", "evict", "lose_node", "start", "wait"))


@QUIET
@given(data=st.data(), low=st.integers(0, 3), high=st.integers(3, 6), style=st.sampled_from(["Immediate", "Drain"]))
def test_whatever_is_asked_for_the_bounds_hold_and_no_role_is_left_empty(
    data: st.DataObject, low: int, high: int, style: str
) -> None:
    world = World(
        external(pool("p", low=low, high=high, roles=BOTH), pool("q", high=2, roles=("decode",)), style=style)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        prefill, decode = data.draw(ASKED)
        world.asked = {("p", P): prefill, ("p", D): decode, ("q", D): data.draw(st.integers(0, 4))}
        for _ in range(data.draw(st.integers(0, 4))):
            for action in data.draw(st.permutations(world.plan().actions)):
                served = served_roles(world.workers.values())
                world.do(action)
                assert served <= served_roles(world.workers.values()) or isinstance(action, TellRole)
                for name, most in (("p", high), ("q", 2)):
                    assert sum(worker.pool == name for worker in world.workers.values()) <= most
            if world.workers:
                name = data.draw(st.sampled_from(sorted(world.workers)))
                event = data.draw(EVENTS)
                world.pass_time(40) if event == "wait" else getattr(world, event)(name)
    for worker in list(world.workers.values()):
        if worker.lost:
            world.workers.pop(worker.name)
    world.pass_time(60)
    world.settle()
    world.pass_time(60)
    world.settle()
    wanted: dict[Role, int] = {}
    for each in world.plan().scales:
        wanted[each.role] = wanted.get(each.role, 0) + each.desired
    assert world.roles() == {role: count for role, count in wanted.items() if count}
    assert low <= sum(worker.pool == "p" for worker in world.workers.values()) <= high
