"""Sleep at depth Engines: who is drained, told to sleep and woken, and in which order; by values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.decide.loads import measurements
from tests.decide.world import World, idle_load, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, IdleDepth, SleepState
from fulcrum.api.worker import EngineSleepState
from fulcrum.decide.measurements import Callers, Measurements
from fulcrum.report import BalancePlan
from fulcrum.rollout import CreateWorker, DeleteWorker, SetRole, StartDrain, TellSleep

IDLE = 600.0
QUIET = Callers(quiet_seconds=IDLE)
HELD = Callers(held=2, quiet_seconds=0.0, idle_seconds=0.0)


class SleepingWorld(World):
    """Agents that know vLLM's sleep mode."""

    def __init__(self, *, level: int | None = None, **balance: Any) -> None:
        gpus = {**pool("p", roles=("mixed",)), "accelerator": "H100-SXM-80GB"}
        spec = make_spec(gpus, mode="Auto", slo={"ttft": "500ms", "tpot": "25ms"})
        changed = {"idle_after": "10m", "idle_depth": IdleDepth.ENGINES, "sleep_level": level, **balance}
        super().__init__(msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, **changed)))
        self.engines: dict[str, EngineSleepState] = {}
        self.hear(HELD)
        self.settle_all()
        self.pass_time(2 * IDLE)

    def hear(self, callers: Callers) -> None:
        known = measurements(0.0, 300.0, 50.0, pools=("p",))
        self.measurements = Measurements(traffic=known.traffic, speeds=known.speeds, callers=callers)

    def report(self) -> None:
        for name, worker in self.workers.items():
            sleep = self.engines.setdefault(name, EngineSleepState.AWAKE)
            self.set(name, load=msgspec.structs.replace(idle_load(worker), sleep=sleep.value))

    def step(self) -> BalancePlan:
        """One tick: what the agents are told has happened by the next one."""
        self.report()
        result = self.plan()
        for action in result.actions:
            self.do(action)
            if isinstance(action, TellSleep) and self.workers[action.name].role_epoch == action.epoch:
                awake = action.level == 0
                self.engines[action.name] = EngineSleepState.AWAKE if awake else EngineSleepState.ASLEEP
        for name in list(self.workers):
            self.vanish(name)
            self.start(name)
        self.pass_time(3)
        return result

    def settle_all(self) -> list[BalancePlan]:
        plans = [self.step()]
        while plans[-1].actions:
            plans.append(self.step())
            assert len(plans) < 50, plans[-1].actions
        return plans

    @property
    def sleep(self) -> Any:
        return self.status.sleep


def asleep(**balance: Any) -> SleepingWorld:
    world = SleepingWorld(**balance)
    world.hear(QUIET)
    world.settle_all()
    assert (world.sleep.state, world.sleep.depth) == (SleepState.ASLEEP, IdleDepth.ENGINES)
    return world


def kinds(plans: list[BalancePlan]) -> list[str]:
    return [type(action).__name__ for each in plans for action in each.actions]


@pytest.mark.parametrize(("level", "told"), [(None, 1), (1, 1), (2, 2)])
def test_workers_drain_before_their_engines_sleep_and_no_pod_goes(level: int | None, told: int) -> None:
    world = SleepingWorld(level=level)
    before = {worker.uid for worker in world.workers.values()}
    world.hear(QUIET)
    plans = world.settle_all()
    assert kinds(plans) == ["StartDrain", "TellSleep"]
    (drain,) = plans[0].actions
    assert isinstance(drain, StartDrain)
    assert drain.reason is Reason.FELL_ASLEEP
    assert [action.level for each in plans for action in each.actions if isinstance(action, TellSleep)] == [told]
    assert {worker.uid for worker in world.workers.values()} == before
    assert world.sleep.state == SleepState.ASLEEP
    assert "engines are put to sleep" in plans[0].events[0].message


def test_an_engine_with_work_or_kv_for_a_peer_is_not_put_to_sleep() -> None:
    world = SleepingWorld()
    world.hear(QUIET)
    world.step()
    (name,) = world.workers
    for busy in ({"running": 1}, {"waiting": 1}, {"kv_held_for_peers": 0.1}, {"kv_held_for_peers": None}):
        world.report()
        load = world.workers[name].load
        assert load is not None
        world.set(name, load=msgspec.structs.replace(load, **busy))
        result = world.plan()
        assert result.actions == ()
        assert world.sleep.state == SleepState.FALLING_ASLEEP
    world.set(name, load=None)
    assert world.plan().actions == (), "unknown is not idle"


def test_asleep_nothing_is_written() -> None:
    world = asleep()
    world.pass_time(3600)
    world.report()
    before = world.status
    result = world.plan()
    assert (result.actions, result.events, result.status) == ((), (), before)
    assert result.requeue_after_seconds >= 2.0, "it is not polled as a drain is"
    for name in world.workers:
        world.set(name, load=None)
    assert world.plan().status == before, "one answer that is lost changes nothing"


def test_an_engine_wakes_before_its_worker_gets_a_role() -> None:
    world = asleep()
    (name,) = world.workers
    world.hear(HELD)
    plans = world.settle_all()
    assert kinds(plans) == ["TellSleep", "SetRole"]
    assert [action.level for action in plans[0].actions if isinstance(action, TellSleep)] == [0]
    assert plans[0].status.sleep is not None
    assert plans[0].status.sleep.state == SleepState.WAKING
    assert world.workers[name].role is Role.MIXED
    assert world.sleep.state == SleepState.AWAKE


@pytest.mark.parametrize("state", [EngineSleepState.WAKING, EngineSleepState.FALLING_ASLEEP, None])
def test_no_role_before_the_engine_is_known_to_be_awake(state: EngineSleepState | None) -> None:
    world = asleep()
    (name,) = world.workers
    world.hear(HELD)
    world.report()
    load = world.workers[name].load
    world.set(name, load=None if state is None or load is None else msgspec.structs.replace(load, sleep=state.value))
    actions = world.plan().actions
    assert not [each for each in actions if isinstance(each, SetRole | CreateWorker | DeleteWorker)]
    assert [type(each) for each in actions] == ([] if state is None else [TellSleep])


def test_an_engine_that_died_asleep_starts_awake_and_is_put_to_sleep_again() -> None:
    world = asleep()
    (name,) = world.workers
    world.engines[name] = EngineSleepState.AWAKE
    assert kinds(world.settle_all()) == ["TellSleep"]
    assert world.sleep.state == SleepState.ASLEEP


def test_a_request_while_workers_drain_gives_them_their_roles_back() -> None:
    world = SleepingWorld()
    world.hear(QUIET)
    world.step()
    world.hear(HELD)
    assert kinds(world.settle_all()) == ["SetRole"]


def test_another_depth_replaces_the_workers() -> None:
    world = asleep()
    balance = msgspec.structs.replace(world.spec.balance, idle_depth=IdleDepth.PODS)
    world.spec = msgspec.structs.replace(world.spec, balance=balance)
    assert "DeleteWorker" in kinds(world.settle_all())
    assert world.workers == {}
    assert (world.sleep.state, world.sleep.depth) == (SleepState.ASLEEP, IdleDepth.PODS)


def test_a_spec_that_may_sleep_no_more_wakes_the_engines() -> None:
    world = asleep()
    balance = msgspec.structs.replace(world.spec.balance, idle_after=None)
    world.spec = msgspec.structs.replace(world.spec, balance=balance)
    world.settle_all()
    assert set(world.roles()) == {Role.MIXED}


def test_times_to_first_token_are_told_by_depth() -> None:
    world = asleep()
    world.hear(HELD)
    world.step()
    world.hear(replace(HELD, held=0, first_token_seconds=2.5))
    world.settle_all()
    assert world.sleep.first_token_by_depth == {IdleDepth.ENGINES: 2.5}
    world.workers.clear()
    world.engines.clear()
    world.hear(QUIET)
    world.pass_time(2 * IDLE)
    world.step()
    assert world.sleep.depth is IdleDepth.PODS
    world.hear(HELD)
    world.step()
    world.hear(replace(HELD, held=0, first_token_seconds=90.0))
    world.settle_all()
    assert world.sleep.first_token_by_depth == {IdleDepth.ENGINES: 2.5, IdleDepth.PODS: 90.0}


def test_progressing_says_what_falls_asleep() -> None:
    world = SleepingWorld()
    world.hear(QUIET)
    result = world.step()
    progressing = next(each for each in result.conditions if each.type is ConditionType.PROGRESSING)
    assert progressing.reason is Reason.FELL_ASLEEP
    assert progressing.message.startswith("Putting the engines of c-p-0 to sleep.")


@pytest.mark.parametrize(
    ("measured", "woken"), [({}, True), ({IdleDepth.PODS: 5.0}, True), ({IdleDepth.ENGINES: 5.0}, False)]
)
def test_engines_are_woken_as_long_before_load_as_they_took_the_last_time(
    measured: dict[IdleDepth, float], woken: bool
) -> None:
    world = asleep()
    world.status = msgspec.structs.replace(
        world.status, sleep=msgspec.structs.replace(world.sleep, first_token_by_depth=measured)
    )
    world.measurements = replace(world.measurements, start_seconds=300.0, load_expected_seconds=200.0)
    world.step()
    assert (world.sleep.state == SleepState.WAKING) is woken
