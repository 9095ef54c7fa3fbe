"""Invariants of the plan, looked at after every single action and every event, in any order and with failures."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide import WorkerPhase, make_target
from fulcrum.decide.replacements import surge_limit
from fulcrum.decide.snapshot import roles_served, served_roles
from fulcrum.rollout import Action, DeleteWorker, StartDrain, TellRole

BOTH = ("prefill", "decode")
QUIET = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def specs(draw: st.DrawFn) -> InferenceClusterSpec:
    """Specs that can be changed into one another: up to two pools of the same names."""
    rollout: dict[str, int | str] = {
        "away": draw(st.sampled_from([0, 1, 2, "50%"])),
        "surge": draw(st.sampled_from([0, 1, 2, "34%"])),
    }
    layouts = [
        [pool("a", high=draw(st.integers(0, 5)), **rollout)],
        [
            pool("a", high=draw(st.integers(1, 4)), **rollout),
            pool("b", high=draw(st.integers(0, 3)), roles=("decode",)),
        ],
        [pool("a", high=2, roles=("prefill",)), pool("b", high=2, roles=("decode",))],
        [pool("a", high=1, roles=("decode",)), pool("b", high=1, roles=("prefill",))],
        [pool("a", high=2), pool("b", high=1, roles=("mixed",))],
        [pool("b", high=draw(st.integers(1, 3)), **rollout)],
    ]
    return make_spec(
        *draw(st.sampled_from(layouts)),
        ratio=draw(st.none() | st.tuples(st.integers(1, 4), st.integers(1, 4))),
        style=draw(st.sampled_from(["Immediate", "Drain"])),
        model=draw(st.sampled_from(["m", "n"])),
    )


def needed_roles(spec: InferenceClusterSpec) -> frozenset[Role]:
    return frozenset[Role]().union(*(roles_served(role) for role in make_target(spec).counts()))


class Watch:
    """Checks what must hold after each step."""

    def __init__(self, world: World) -> None:
        self.world = world

    def act(self, action: Action) -> None:
        world = self.world
        needed = needed_roles(world.spec)
        before = dict(world.workers)
        served = served_roles(before.values())
        world.do(action)
        # No role that somebody served is left empty by what we did.
        gone = (served - served_roles(world.workers.values())) & needed
        lonely = make_target(world.spec).total == 1
        assert not gone or lonely, f"{action} left {gone} empty: {before}"
        # Never above the budget: a worker is added only where there is room, terminating and lost ones counted; beyond
        # the target only as far as the rollout says, and never beyond the bound.
        pools = {chosen.name: chosen for chosen in world.spec.pools}
        target = make_target(world.spec)
        for name in {w.pool for w in world.workers.values()}:
            was = sum(1 for w in before.values() if w.pool == name)
            now = sum(1 for w in world.workers.values() if w.pool == name)
            wanted = sum(target.in_pool(name).values())
            most = wanted + surge_limit(pools[name], wanted) if name in pools else 0
            assert now <= max(was, most)
            assert name not in pools or now <= max(was, pools[name].workers.max)
        # Nobody else's Pod is touched, and what is removed by force is lost.
        assert action.name not in world.taken
        if isinstance(action, DeleteWorker) and action.force:
            assert before[action.name].lost
        # Unknown load is not idle: a drain ends when the load is known to be zero, time is over or the node is lost.
        if isinstance(action, DeleteWorker) and (worker := before.get(action.name)) and worker.uid == action.uid:
            if worker.role is Role.DRAINING and worker.phase is WorkerPhase.RUNNING:
                assert worker.draining_since is not None
                timed_out = (world.now - worker.draining_since).total_seconds() >= 60
                assert timed_out or worker.lost or (worker.load is not None and worker.load.idle)
            # Whoever serves is drained first.
            assert not worker.serving


EVENTS = ("start", "pause", "crash", "evict", "vanish", "report_idle", "lose_node")


@QUIET
@given(st.lists(specs(), min_size=1, max_size=3), st.data())
def test_every_intermediate_state_is_safe(story: list[InferenceClusterSpec], data: st.DataObject) -> None:
    world = World(story[0])
    world.taken = data.draw(st.sampled_from([frozenset[str](), frozenset({"c-a-0", "c-a-2", "c-b-1"})]), label="taken")
    watch = Watch(world)
    if data.draw(st.booleans(), label="start settled"):
        world.settle()
    for spec in story:
        world.spec = spec
        for _ in range(data.draw(st.integers(1, 6), label="rounds")):
            actions = list(world.plan().actions)
            if actions:
                chosen = data.draw(
                    st.lists(st.sampled_from(range(len(actions))), unique=True), label="those that complete, in order"
                )
                for index in chosen:
                    watch.act(actions[index])
            if world.workers:
                for name in data.draw(st.lists(st.sampled_from(sorted(world.workers)), max_size=4), label="workers"):
                    getattr(world, data.draw(st.sampled_from(EVENTS), label="event"))(name)
            world.pass_time(data.draw(st.sampled_from([0, 1, 5, 61]), label="seconds"))
    converges(world)


def converges(world: World) -> None:
    rounds = world.settle()
    assert rounds <= 60
    target = make_target(world.spec)
    assert world.roles() == target.counts()
    for chosen in world.spec.pools:
        here = [w for w in world.workers.values() if w.pool == chosen.name]
        assert len(here) == sum(target.in_pool(chosen.name).values())
    assert all(w.spec_hash == world.revision(w.pool) for w in world.workers.values())
    assert [a for a in world.plan().actions if not isinstance(a, TellRole)] == []


@QUIET
@given(specs(), specs())
def test_availability_through_a_healthy_change(first: InferenceClusterSpec, second: InferenceClusterSpec) -> None:
    """Where nothing fails, a role that both specs need is served all the way, one action after the other."""
    world = World(first)
    world.settle()
    world.spec = second
    needed = needed_roles(first) & needed_roles(second)
    lonely = make_target(second).total == 1
    for _ in range(200):
        actions = world.plan().actions
        for action in actions:
            world.do(action)
            assert lonely or needed <= served_roles(world.workers.values())
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            world.report_idle(name)
        world.pass_time(3)
        if not actions and all(w.ready for w in world.workers.values()):
            break
    assert world.roles() == make_target(second).counts()


@QUIET
@given(
    st.integers(2, 8), st.tuples(st.integers(1, 8), st.integers(1, 8)), st.tuples(st.integers(1, 8), st.integers(1, 8))
)
def test_flips_are_as_few_as_can_be(workers: int, first: tuple[int, int], second: tuple[int, int]) -> None:
    world = World(make_spec(pool(low=workers, high=workers), ratio=first))
    world.settle()
    before = {name: worker.role for name, worker in world.workers.items()}
    counts = make_target(world.spec).counts()
    world.spec = make_spec(pool(low=workers, high=workers), ratio=second)
    wanted = make_target(world.spec).counts()
    world.settle()
    flipped = [name for name, worker in world.workers.items() if worker.role is not before[name]]
    assert len(flipped) == abs(wanted[Role.PREFILL] - counts[Role.PREFILL])
    assert sum(worker.role_epoch for worker in world.workers.values()) == len(flipped)
    assert not any(worker.restarts for worker in world.workers.values())


@QUIET
@given(specs())
def test_equal_snapshots_give_equal_plans_in_any_order(spec: InferenceClusterSpec) -> None:
    world = World(spec)
    for action in world.plan().actions:
        world.do(action)
    forward = world.plan()
    world.workers = dict(reversed(world.workers.items()))
    assert world.plan() == forward


@QUIET
@given(specs())
def test_unknown_load_never_ends_a_drain(spec: InferenceClusterSpec) -> None:
    world = World(spec)
    world.settle()
    for name in world.workers:
        world.set(name, load=None)
    world.spec = make_spec(pool("a", high=1), pool("b", high=0))
    for _ in range(5):
        actions = world.plan().actions
        assert not any(isinstance(a, DeleteWorker) for a in actions)
        for action in actions:
            if isinstance(action, StartDrain):
                world.do(action)
        world.pass_time(10)
