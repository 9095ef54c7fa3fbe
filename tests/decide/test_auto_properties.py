"""Invariants of mode Auto, after every single action, in any order, with failures and changing loads in between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decide.loads import measurements, speed
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, InferenceClusterSpec, Ratio
from fulcrum.api.worker import LoadReport
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.snapshot import served_roles
from fulcrum.report import plan
from fulcrum.rollout import Action, CreateWorker, DeleteWorker, SetRole, StartDrain, TellRole

QUIET = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
DWELL = timedelta(seconds=30)
SPEEDS = {"a": speed(), "b": speed(prefill=0.3, decode=0.6)}


@st.composite
def specs(draw: st.DrawFn) -> InferenceClusterSpec:
    low = draw(st.integers(0, 3))
    high = draw(st.integers(max(1, low), 6))
    layouts = [
        [pool("a", low=low, high=high)],
        [pool("a", low=low, high=high), pool("b", high=draw(st.integers(0, 3)), roles=("decode",))],
        [pool("a", low=low, high=high), pool("b", high=draw(st.integers(0, 3)))],
        [pool("a", low=low, high=high, roles=("prefill",)), pool("b", low=0, high=3, roles=("decode",))],
        [pool("a", low=low, high=high, roles=("prefill", "decode"))],
        [pool("a", low=low, high=high), pool("b", high=2, roles=("mixed",))],
        [pool("b", low=low, high=high, roles=("mixed",))],
    ]
    return make_spec(
        *draw(st.sampled_from(layouts)),
        mode="Auto",
        style=draw(st.sampled_from(["Immediate", "Drain"])),
        ratio=draw(st.none() | st.tuples(st.integers(1, 6), st.integers(1, 6))),
        slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95},
    )


@st.composite
def known_loads(draw: st.DrawFn) -> Measurements:
    rate = draw(st.sampled_from([0.0, 0.2, 3.0, 12.0, 40.0, 400.0]))
    isl, osl = draw(st.sampled_from([(3000.0, 40.0), (1500.0, 250.0), (150.0, 900.0)]))
    known = measurements(
        rate,
        isl,
        osl,
        upper=rate * draw(st.sampled_from([1.0, 1.5])),
        peak_rate=draw(st.sampled_from([None, rate, 2 * rate])),
        attainment=draw(st.sampled_from([None, 1.0, 0.5])),
        ttft_p90_seconds=draw(st.sampled_from([None, 0.2, 2.0])),
        speeds=SPEEDS,
    )
    return draw(
        st.sampled_from(
            [known, known, known, replace(known, traffic=None, unknown="it is away"), replace(known, forecast=None)]
        )
    )


class Watch:
    """Checks what must hold after each step."""

    def __init__(self, world: World) -> None:
        self.world = world

    def act(self, action: Action) -> None:
        world = self.world
        before = dict(world.workers)
        served = served_roles(before.values())
        alone = sum(counts.desired for counts in world.status.roles.values()) == 1
        world.do(action)
        gone = served - served_roles(world.workers.values())
        assert not gone or alone, f"{action} left {gone} empty: {before}"
        for chosen in world.spec.pools:
            was = sum(1 for w in before.values() if w.pool == chosen.name)
            now = sum(1 for w in world.workers.values() if w.pool == chosen.name)
            assert now <= max(was, chosen.workers.max)
            live = sum(1 for w in world.workers.values() if w.pool == chosen.name and not w.deleting and not w.ended)
            if isinstance(action, DeleteWorker) and before[action.name].pool == chosen.name:
                assert live >= chosen.workers.min or before[action.name].ended
        worker = before.get(action.name)
        if isinstance(action, SetRole | StartDrain) and worker is not None and worker.role_since is not None:
            leaving = isinstance(action, StartDrain) and action.reason in (Reason.LOAD_FELL, Reason.WORKER_DRAINING)
            ending = worker.role is Role.DRAINING
            repaired = action.reason is Reason.ROLE_EMPTY
            assert leaving or ending or repaired or world.now - worker.role_since >= DWELL, f"{action} too early"


EVENTS = ("start", "pause", "crash", "evict", "vanish", "report_idle", "unschedulable", "queue")


def happen(world: World, event: str, name: str) -> None:
    match event:
        case "unschedulable":
            if not world.workers[name].ready:
                world.set(name, unschedulable="no node")
        case "queue":
            world.set(name, load=busy(world, name))
        case _:
            if event == "start":
                world.set(name, unschedulable=None)
            getattr(world, event)(name)


def busy(world: World, name: str) -> LoadReport:
    worker = world.workers[name]
    return LoadReport(
        role=worker.role,
        role_epoch=worker.role_epoch,
        ready=True,
        draining=False,
        running=200,
        waiting=80,
        queued_prompt_tokens=200_000,
        kv_usage=0.99,
    )


@QUIET
@given(specs(), st.lists(known_loads(), min_size=1, max_size=3), st.data())
def test_every_intermediate_state_is_safe(
    spec: InferenceClusterSpec, story: list[Measurements], data: st.DataObject
) -> None:
    world = World(spec)
    watch = Watch(world)
    world.measurements = story[0]
    if data.draw(st.booleans(), label="start settled"):
        world.settle()
    for known in story:
        world.measurements = known
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
                    if name in world.workers:
                        happen(world, data.draw(st.sampled_from(EVENTS), label="event"), name)
            world.pass_time(data.draw(st.sampled_from([0, 2, 10, 61]), label="seconds"))
    for name in world.workers:
        world.set(name, unschedulable=None)
    comes_to_rest(world, watch)


def comes_to_rest(world: World, watch: Watch) -> None:
    """In a healthy world a constant load is answered in bounded steps, and then with nothing at all."""
    flips = 0
    quiet = 0
    for _ in range(60):
        actions = [action for action in world.plan().actions if not isinstance(action, TellRole)]
        quiet = quiet + 1 if not actions else 0
        flips += sum(1 for action in actions if isinstance(action, SetRole))
        for action in actions:
            watch.act(action)
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            world.report_idle(name)
        world.pass_time(10)
    assert quiet >= 20, f"still moving: {actions} {world.status.ratio}"
    assert flips <= 3 * sum(chosen.workers.max for chosen in world.spec.pools)
    counts = {role: counts.desired for role, counts in world.status.roles.items() if counts.desired}
    assert world.roles() == counts
    assert {Role.PREFILL, Role.DECODE} <= served_roles(world.workers.values())
    for chosen in world.spec.pools:
        here = sum(1 for worker in world.workers.values() if worker.pool == chosen.name)
        assert chosen.workers.min <= here <= chosen.workers.max


def test_who_drained_for_another_role_gets_it() -> None:
    """Also when the load that is planned ahead for would have it otherwise."""
    spec = make_spec(
        pool("a", low=0, high=3), mode="Auto", style="Drain", slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
    )
    world = World(spec)
    world.measurements = measurements(400.0, 3000.0, 40.0, upper=600.0, speeds=SPEEDS)
    comes_to_rest(world, Watch(world))
    assert world.status.ratio == "2P:1D"


def test_nobody_drains_for_a_role_that_another_one_drains_for() -> None:
    """A worker that died is replaced while one drains for its role: the next flip does not take that role from it."""
    spec = make_spec(
        pool("a", low=2, high=6), mode="Auto", style="Drain", slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
    )
    world = World(spec)
    for action in world.plan().actions:
        world.do(action)
    world.evict("c-a-0")
    world.measurements = measurements(40.0, 1500.0, 250.0, peak_rate=None, speeds=SPEEDS)
    comes_to_rest(world, Watch(world))
    assert world.status.ratio == "2P:3D"


@QUIET
@given(specs(), known_loads(), st.booleans())
def test_unknown_metrics_change_nothing(spec: InferenceClusterSpec, known: Measurements, without_speeds: bool) -> None:
    world = World(spec)
    world.measurements = known
    comes_to_rest(world, Watch(world))
    before = {name: worker.role for name, worker in world.workers.items()}
    lost = replace(known, speeds={}) if without_speeds else replace(known, traffic=None, forecast=None, peak=None)
    world.measurements = replace(lost, unknown="Prometheus does not answer")
    for _ in range(4):
        result = world.plan()
        assert not [action for action in result.actions if not isinstance(action, TellRole)]
        world.pass_time(400)
    assert {name: worker.role for name, worker in world.workers.items()} == before
    progressing = next(c for c in result.conditions if c.type is ConditionType.PROGRESSING)
    assert progressing.reason is Reason.METRICS_UNKNOWN


@QUIET
@given(specs(), known_loads(), st.data())
def test_unknown_metrics_still_replace_what_dies(
    spec: InferenceClusterSpec, known: Measurements, data: st.DataObject
) -> None:
    world = World(spec)
    world.measurements = known
    comes_to_rest(world, Watch(world))
    before = {chosen.name: sum(1 for w in world.workers.values() if w.pool == chosen.name) for chosen in spec.pools}
    world.measurements = Measurements(unknown="away")
    name = data.draw(st.sampled_from(sorted(world.workers)))
    world.plan()
    del world.workers[name]  # a node that is gone takes its Pods with it, without a trace
    comes_to_rest(world, Watch(world))
    after = {chosen.name: sum(1 for w in world.workers.values() if w.pool == chosen.name) for chosen in spec.pools}
    assert sum(after.values()) == sum(before.values())


@QUIET
@given(specs(), known_loads())
def test_a_restarted_operator_decides_the_same(spec: InferenceClusterSpec, known: Measurements) -> None:
    world = World(spec)
    world.measurements = known
    for action in world.plan().actions:
        world.do(action)
    seen = world.snapshot()
    turned = replace(seen, workers=tuple(reversed(seen.workers)))
    assert plan(seen, world.now) == plan(turned, world.now) == plan(seen, world.now)


@QUIET
@given(specs(), known_loads(), known_loads(), st.data())
def test_the_ratio_is_only_to_begin_with(
    spec: InferenceClusterSpec, first: Measurements, then: Measurements, data: st.DataObject
) -> None:
    world = World(spec)
    world.measurements = first
    for action in world.plan().actions:
        world.do(action)
    for name in list(world.workers):
        happen(world, data.draw(st.sampled_from(["start", "evict", "vanish"]), label="event"), name)
    world.measurements = then
    world.pass_time(data.draw(st.sampled_from([0, 2, 61]), label="seconds"))
    seen = world.snapshot()
    balance = msgspec.structs.replace(spec.balance, ratio=Ratio(prefill=5, decode=2))
    other = msgspec.structs.replace(spec, balance=balance)
    assert plan(seen, world.now) == plan(replace(seen, spec=other), world.now)


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_the_first_workers_are_the_fewest_that_serve(rate: float) -> None:
    for low, expected in ((0, {Role.MIXED: 1}), (1, {Role.MIXED: 1}), (2, {Role.PREFILL: 1, Role.DECODE: 1})):
        world = World(make_spec(pool(low=low, high=8), mode="Auto"))
        if rate:
            world.measurements = Measurements(speeds={"p": speed()})
        created = [action.role for action in world.plan().actions if isinstance(action, CreateWorker)]
        assert {role: created.count(role) for role in created} == expected
