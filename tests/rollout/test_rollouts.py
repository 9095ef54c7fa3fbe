"""Rollouts: how many workers go at a time, extra ones within the bound, and the promise that halts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decide.loads import measurements, speed, traffic
from tests.decide.world import World, idle_load, make_spec, pool

from fulcrum.api.engine_types import STORED_IMAGE
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionStatus, ConditionType, InferenceClusterSpec
from fulcrum.api.worker import Stage
from fulcrum.decide.measurements import Measurements
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import Action, CreateWorker, DeleteWorker, StartDrain, TellRole

STEP_SECONDS = 3
START_STEPS = 10
"""How long a Pod takes to start."""


def rolled_out(world: World, *, steps: int = 600) -> tuple[int, int, int]:
    """Run until all workers are of the wanted revision; returns steps, fewest that served and most that were there."""
    began: dict[str, int] = {}
    fewest, most = 999, 0
    for step in range(steps):
        actions = [a for a in world.plan().actions if not isinstance(a, TellRole)]
        for action in actions:
            world.do(action)
        fewest = min(fewest, sum(worker.serving for worker in world.workers.values()))
        most = max(most, len(world.workers))
        if not actions and all(w.spec_hash == world.revision("p") and w.serving for w in world.workers.values()):
            return step, fewest, most
        for name in list(world.workers):
            world.vanish(name)
            if name in world.workers:
                began.setdefault(world.workers[name].uid, step)
                if step - began[world.workers[name].uid] >= START_STEPS:
                    world.start(name)
                world.report_idle(name)
        world.pass_time(STEP_SECONDS)
    raise AssertionError(f"no end in sight: {world.workers}")


def at_rest(workers: int = 8, *, high: int | None = None, mode: str = "Manual", **rollout: Any) -> World:
    bound = high or workers
    world = World(make_spec(pool(high=bound, **rollout), ratio=(workers // 2, workers - workers // 2), mode=mode))
    world.settle()
    world.pass_time(600)
    for name in world.workers:
        world.set(name, created=world.now)
    world.pass_time(600)
    world.spec = make_spec(
        pool(high=bound, **rollout), ratio=(workers // 2, workers - workers // 2), mode=mode, model="other"
    )
    return world


def test_two_at_a_time_take_half_the_time() -> None:
    one_by_one, fewest, _ = rolled_out(at_rest(8, away=1))
    assert fewest == 7
    for away in (2, "25%"):
        in_pairs, fewest, most = rolled_out(at_rest(8, away=away))
        assert (fewest, most) == (6, 8)
        assert in_pairs <= 0.55 * one_by_one


def test_two_at_a_time_are_one_of_each_role() -> None:
    drains = [a for a in at_rest(8, away=2).plan().actions if isinstance(a, StartDrain)]
    assert sorted(a.from_role for a in drains) == [Role.DECODE, Role.PREFILL]


@pytest.mark.parametrize(("high", "away", "surge", "expected"), [
    (9, 0, 1, (8, 9)),   # a replacement is ready before one goes
    (12, 0, 4, (8, 12)),
    (12, 0, "25%", (8, 10)),
    (8, 0, 1, (7, 8)),   # no room beyond workers.max: one goes first
    (10, 1, 1, (7, 9)),
])  # fmt: skip
def test_surge_stays_within_the_bound(high: int, away: int, surge: int | str, expected: tuple[int, int]) -> None:
    world = at_rest(8, high=high, away=away, surge=surge)
    roles = world.roles()
    _, fewest, most = rolled_out(world)
    assert (fewest, most) == expected
    assert world.roles() == roles
    assert len(world.workers) == 8


@pytest.mark.parametrize(("away", "surge"), [(0, 2), (1, 0), (2, 1)])
def test_a_worker_that_only_answers_late_goes_within_the_bounds_and_first(away: int, surge: int) -> None:
    """Its requests may go on, and it may be back before any replacement serves: it is no worker that cannot start."""
    world = at_rest(4, high=6, away=away, surge=surge)
    for name in ("c-p-1", "c-p-2", "c-p-3"):
        world.pause(name)
    actions = world.plan().actions
    assert not any(isinstance(action, DeleteWorker) for action in actions)
    assert [action.name for action in actions if isinstance(action, StartDrain)] == ["c-p-1", "c-p-2"][:away]
    assert sum(isinstance(action, CreateWorker) for action in actions) == surge
    assert rolled_out(world)[2] == 4 + surge


def test_a_worker_whose_engine_starts_anew_goes_at_once() -> None:
    """Its container is up, and its agent says that the engine is not: nothing is lost with it."""
    world = at_rest(4, away=0, surge=0)
    starting = msgspec.structs.replace(idle_load(world.workers["c-p-2"]), ready=False, stage=Stage.IMPORTS)
    world.set("c-p-2", ready=False, load=starting)
    assert [action.name for action in world.plan().actions if isinstance(action, DeleteWorker)] == ["c-p-2"]


@pytest.mark.parametrize("mode", ["Manual", "Auto"])
def test_a_rollout_that_is_taken_back_half_way_leaves_no_extra_worker(mode: str) -> None:
    world = at_rest(4, low=4, high=6, away=0, surge=2, mode=mode)
    old = make_spec(pool(low=4, high=6, away=0, surge=2), ratio=(2, 2), mode=mode)
    before = {worker.uid for worker in world.workers.values()}
    for action in world.plan().actions:
        world.do(action)
    assert len(world.workers) == 6
    world.spec = old
    rolled_out(world)
    assert {worker.uid for worker in world.workers.values()} == before


def test_auto_counts_no_worker_of_a_rollout_as_wanted() -> None:
    world = at_rest(4, low=4, high=8, away=0, surge=1, mode="Auto")
    _, _, most = rolled_out(world)
    assert (len(world.workers), most) == (4, 5)


def late(share: float = 0.5) -> Measurements:
    return Measurements(traffic=traffic(10.0, attainment=share, rejected=0.0))


def conditions(result: BalancePlan) -> dict[ConditionType, tuple[str, Reason]]:
    return {c.type: (c.status.value, c.reason) for c in result.conditions}


def one_replaced(**rollout: Any) -> World:
    """A rollout in which the first worker of the new revision serves."""
    world = at_rest(4, **rollout)
    for _ in range(50):
        for action in world.plan().actions:
            world.do(action)
        for name in list(world.workers):
            world.vanish(name)
            world.report_idle(name)
        new = [w for w in world.workers.values() if w.spec_hash == world.revision("p")]
        if new:
            world.start(new[0].name)
            return world
        world.pass_time(3)
    raise AssertionError


def test_a_rollout_that_breaks_the_promise_is_halted_and_says_what_to_do() -> None:
    world = one_replaced()
    world.measurements = late()
    result = world.plan()
    assert not [a for a in result.actions if not isinstance(a, TellRole)]
    assert conditions(result)[ConditionType.DEGRADED] == ("True", Reason.ROLLOUT_HALTED)
    assert conditions(result)[ConditionType.PROGRESSING] == ("False", Reason.ROLLOUT_HALTED)
    message = next(c.message for c in result.conditions if c.type is ConditionType.DEGRADED)
    assert "kubectl annotate ic c fulcrum.dev/continue-rollout=1" in message
    assert [event.reason for event in result.events] == [Reason.ROLLOUT_HALTED]
    # It goes on when somebody says so, when the promise is kept, and where nobody knows.
    for snapshot in (
        replace(world.snapshot(), continues_rollout=True),
        replace(world.snapshot(), measurements=late(0.99)),
        replace(world.snapshot(), measurements=Measurements()),
    ):
        goes_on = plan(snapshot, world.now)
        assert [a for a in goes_on.actions if isinstance(a, StartDrain)]
        assert Reason.ROLLOUT_HALTED not in {c.reason for c in goes_on.conditions}


@pytest.mark.parametrize(
    ("release_image", "named", "stale"),
    [
        (None, None, False),
        ("r:2", None, False),
        (STORED_IMAGE, STORED_IMAGE, False),
        ("r:2", STORED_IMAGE, True),  # the same revision, and another image all the same
        (None, STORED_IMAGE, False),
        ("r:2", "mine:1", True),
    ],
)
def test_a_worker_is_replaced_for_an_image_only_where_the_spec_names_another_one(
    release_image: str | None, named: str | None, stale: bool
) -> None:
    world = World(make_spec(pool()))
    world.settle()
    for name in world.workers:
        world.set(name, release_image=release_image)
    world.spec = msgspec.structs.replace(world.spec, engine=msgspec.structs.replace(world.spec.engine, image=named))
    assert any(isinstance(action, StartDrain) for action in world.plan().actions) is stale


def test_before_a_new_worker_serves_a_broken_promise_is_not_the_rollouts_fault() -> None:
    world = at_rest(4)
    world.measurements = late()
    assert [a for a in world.plan().actions if isinstance(a, StartDrain)]


def test_going_back_is_never_halted() -> None:
    world = one_replaced()
    world.measurements = late()
    world.spec = make_spec(pool(high=4), ratio=(2, 2))
    drained = [a.name for a in world.plan().actions if isinstance(a, StartDrain)]
    assert drained == [w.name for w in world.workers.values() if w.spec_hash != world.revision("p")]


def test_a_correction_replaces_the_bad_revision_first() -> None:
    world = one_replaced()
    bad = next(w.name for w in world.workers.values() if w.spec_hash == world.revision("p"))
    world.measurements = late()
    world.spec = make_spec(pool(high=4), ratio=(2, 2), model="corrected")
    assert [a.name for a in world.plan().actions if isinstance(a, StartDrain)] == [bad]


def test_a_halted_rollout_keeps_the_old_worker_whose_replacement_is_ready() -> None:
    world = at_rest(4, high=5, away=0, surge=1)
    for action in world.plan().actions:
        world.do(action)
    (new,) = [w for w in world.workers.values() if w.replaces]
    world.start(new.name)
    world.measurements = late()
    result = world.plan()
    assert not [a for a in result.actions if not isinstance(a, TellRole)]
    assert conditions(result)[ConditionType.DEGRADED][1] is Reason.ROLLOUT_HALTED


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_lost_node_frees_slot_and_name_and_the_rollout_goes_on(role: Role) -> None:
    world = at_rest(4, away=1)
    lost = next(w for w in world.workers.values() if w.role is role)
    world.lose_node(lost.name)
    result = world.plan()
    (delete,) = [a for a in result.actions if not isinstance(a, TellRole | StartDrain)]
    assert (delete.name, delete.reason, getattr(delete, "force", False)) == (lost.name, Reason.NODE_LOST, True)
    degraded = next(c for c in result.conditions if c.type is ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.NODE_LOST)
    assert "Node n" in degraded.message
    assert lost.name in degraded.message
    world.do(delete)
    assert [a.name for a in world.plan().actions if isinstance(a, CreateWorker)] == [lost.name]
    rolled_out(world)
    assert {worker.spec_hash for worker in world.workers.values()} == {world.revision("p")}


def test_a_name_that_somebody_else_has_is_passed_over() -> None:
    world = World(make_spec(pool(high=3)))
    world.taken = frozenset({"c-p-1", "c-p-3"})
    world.settle()
    assert sorted(world.workers) == ["c-p-0", "c-p-2", "c-p-4"]
    assert world.roles() == {Role.PREFILL: 2, Role.DECODE: 1}


@pytest.mark.parametrize(
    ("workers", "stuck", "expected"), [(8, 0, 7), (8, 1, 6), (2, 0, 1), (2, 1, 1), (2, 2, 0), (1, 0, 0), (3, 3, 0)]
)
def test_evictions_leave_all_but_one_of_those_that_can_serve(workers: int, stuck: int, expected: int) -> None:
    """Of `workers.max` in Auto only what is wanted now counts; those that cannot start hold up no drain of a node."""
    world = World(make_spec(pool(low=workers, high=8), mode="Auto"))
    world.settle()
    for name in sorted(world.workers)[:stuck]:
        world.set(name, ready=False, unschedulable="no node")
    world.pass_time(600)
    assert world.plan().least_available == expected


def test_evictions_wait_for_a_node_that_may_still_come() -> None:
    world = World(make_spec(pool(low=4, high=8), mode="Auto"))
    world.settle()
    world.set("c-p-3", ready=False, unschedulable="no node", created=world.now)
    assert world.plan().least_available == 3


EVENTS = ("start", "start", "pause", "crash", "evict", "vanish", "report_idle", "lose_node")
QUIET = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def auto_specs(draw: st.DrawFn) -> InferenceClusterSpec:
    """Specs of one cluster on its way: models, bounds and pools come and go."""
    rollout: dict[str, Any] = {
        "away": draw(st.sampled_from([0, 1, 2, "50%"])),
        "surge": draw(st.sampled_from([0, 1, 3, "50%"])),
    }
    first = pool("a", low=draw(st.integers(0, 2)), high=draw(st.integers(2, 5)), **rollout)
    other = pool(
        draw(st.sampled_from(["b", "c"])), low=draw(st.integers(0, 1)), high=draw(st.integers(1, 3)), **rollout
    )
    return make_spec(
        *([first, other] if draw(st.booleans()) else [first]),
        mode="Auto",
        model=draw(st.sampled_from(["m", "n"])),
        slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95},
    )


@QUIET
@given(st.lists(auto_specs(), min_size=1, max_size=4), st.data())
def test_budgets_hold_at_every_instant_of_rollouts_under_load(
    story: list[InferenceClusterSpec], data: st.DataObject
) -> None:
    """Above the GPUs of a pool at no instant, whatever dies meanwhile, in any order; and no plan ever fails."""
    world = World(story[0])
    for spec in story:
        world.spec = spec
        attainment = data.draw(st.sampled_from([None, 0.5, 0.99]), label="attainment")
        known = measurements(20.0, 1500.0, 250.0, attainment=attainment, ttft_p90_seconds=2.0)
        world.measurements = replace(known, speeds={chosen.name: speed() for chosen in spec.pools})
        for _ in range(data.draw(st.integers(1, 5), label="rounds")):
            decided = world.plan()
            assert decided.trace.failure is None
            actions = list(decided.actions)
            if actions:
                order = st.lists(st.sampled_from(range(len(actions))), unique=True)
                for index in data.draw(order, label="those that complete, in order"):
                    within_bounds(world, actions[index])
            for name in data.draw(st.lists(st.sampled_from(sorted(world.workers) or ["-"]), max_size=5)):
                if name in world.workers:
                    getattr(world, data.draw(st.sampled_from(EVENTS), label="event"))(name)
            world.pass_time(data.draw(st.sampled_from([0, 2, 31, 400]), label="seconds"))


def within_bounds(world: World, action: Action) -> None:
    before = dict(world.workers)
    world.do(action)
    for name in {worker.pool for worker in world.workers.values()}:
        bound = next((chosen.workers.max for chosen in world.spec.pools if chosen.name == name), 0)
        was = sum(worker.pool == name for worker in before.values())
        assert sum(worker.pool == name for worker in world.workers.values()) <= max(was, bound)
    if isinstance(action, DeleteWorker):
        worker = before[action.name]
        assert not worker.serving
        assert worker.lost or not action.force
