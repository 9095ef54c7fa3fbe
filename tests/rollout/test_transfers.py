"""Workers between which no KV moves: what is said of them, which are restarted, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.decide.world import START, World, make_spec, pool

from fulcrum.api.gateway import FailingPair, PairsReport
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.snapshot import served_roles
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import DeleteWorker, SetRole, StartDrain, TellRole
from fulcrum.rollout.faults import transfer_faults

BOTH = {Role.PREFILL, Role.DECODE}


def failing(prefill: str, decode: str, *, failures: int = 3, works: tuple[int, int] = (0, 0)) -> FailingPair:
    return FailingPair(
        prefill=prefill, decode=decode, failures=failures, seconds=1.0, prefill_works=works[0], decode_works=works[1]
    )


def standing(prefill: int, decode: int) -> World:
    """Workers c-p-0 ... that have stood for a while: prefill ones first."""
    count = prefill + decode
    world = World(make_spec(pool(low=count, high=count), ratio=(prefill, decode)))
    world.settle()
    world.pass_time(600)
    return world


def reports(world: World, *pairs: FailingPair, gateways: int = 1) -> None:
    world.measurements = Measurements(pairs=(PairsReport(failing=pairs),) * gateways)


def turn(world: World) -> BalancePlan:
    """Plan and keep the status, as the operator does in every mode."""
    decided = plan(world.snapshot(), world.now)
    world.status = decided.status
    return decided


def degraded(result: BalancePlan) -> tuple[str, Reason, str]:
    found = next(c for c in result.conditions if c.type is ConditionType.DEGRADED)
    return found.status.value, found.reason, found.message


def drains(result: BalancePlan) -> list[str]:
    return [action.name for action in result.actions if isinstance(action, StartDrain)]


def by_role(world: World, role: Role) -> list[str]:
    return sorted(name for name, worker in world.workers.items() if worker.role is role)


def test_a_pair_is_named_with_what_to_do_and_nothing_is_restarted_for_one_of_several() -> None:
    world = standing(2, 2)
    (p0, _), (d0, _) = by_role(world, Role.PREFILL), by_role(world, Role.DECODE)
    reports(world, failing(p0, d0, failures=9, works=(1, 1)))
    result = turn(world)
    status, reason, message = degraded(result)
    assert (status, reason) == ("True", Reason.KV_TRANSFER_FAILING)
    assert f"{p0} -> {d0}" in message
    assert "port 5600" in message
    assert [event.reason for event in result.events] == [Reason.KV_TRANSFER_FAILING]
    assert not result.actions
    assert result.requeue_after_seconds <= 5
    assert not turn(world).events
    reports(world)
    assert degraded(turn(world))[1] is Reason.HEALTHY


@pytest.mark.parametrize(
    ("pairs", "culprits"),
    [
        ((failing("p0", "d0"), failing("p0", "d1", works=(0, 1))), ["p0"]),
        ((failing("p0", "d0", works=(1, 0)), failing("p1", "d0", works=(1, 0))), ["d0"]),
        ((failing("p0", "d0", works=(0, 2)),), ["p0"]),
        ((failing("p0", "d0", works=(2, 0)),), ["d0"]),
        ((failing("p0", "d0", works=(1, 1)),), []),
        ((failing("p0", "d0"),), ["d0", "p0"]),
        ((failing("p0", "d0", failures=2), failing("p0", "d1", failures=2, works=(0, 1))), []),
        ((failing("p0", "d0", works=(0, 1)), failing("gone", "d0", works=(0, 1))), ["p0"]),
        ((failing("gone", "d0"), failing("gone", "d1")), []),
    ],
)
def test_which_side_is_to_blame(pairs: tuple[FailingPair, ...], culprits: list[str]) -> None:
    world = standing(2, 2)
    names = dict(zip(("p0", "p1", "d0", "d1"), by_role(world, Role.PREFILL) + by_role(world, Role.DECODE), strict=True))
    real = [
        FailingPair(
            prefill=names.get(pair.prefill, pair.prefill),
            decode=names.get(pair.decode, pair.decode),
            failures=pair.failures,
            seconds=1.0,
            prefill_works=pair.prefill_works,
            decode_works=pair.decode_works,
        )
        for pair in pairs
    ]
    # A pair whose decode worker works elsewhere blames the prefill worker only; the rest is in the table.
    reports(world, *real)
    found = transfer_faults(tuple(world.workers.values()), world.measurements.pairs, world.status, world.now)
    assert sorted(worker.name for worker in found.culprits) == sorted(names[name] for name in culprits)


def test_gateways_must_agree_before_a_worker_is_restarted() -> None:
    world = standing(2, 2)
    p0, d0, d1 = by_role(world, Role.PREFILL)[0], *by_role(world, Role.DECODE)
    bad = PairsReport(failing=(failing(p0, d0, works=(0, 1)), failing(p0, d1, works=(0, 1))))
    world.measurements = Measurements(pairs=(bad, PairsReport()))
    result = turn(world)
    assert degraded(result)[1] is Reason.KV_TRANSFER_FAILING
    assert not drains(result)
    world.measurements = Measurements(pairs=(bad, bad))
    assert drains(turn(world)) == [p0]


def test_a_worker_that_is_cut_off_is_drained_and_made_anew_once_until_it_has_settled() -> None:
    world = standing(2, 2)
    p0, d0, d1 = by_role(world, Role.PREFILL)[0], *by_role(world, Role.DECODE)
    uid = world.workers[p0].uid
    bad = (failing(p0, d0, works=(0, 1)), failing(p0, d1, works=(0, 1)))
    reports(world, *bad)
    first = turn(world)
    (action,) = [action for action in first.actions if isinstance(action, StartDrain)]
    assert (action.name, action.reason, action.restart) == (p0, Reason.KV_TRANSFER_FAILING, True)
    world.do(action)
    world.set(p0, restart_asked=True)
    reports(world)  # it serves nobody, so nobody complains
    second = turn(world)
    assert degraded(second)[1] is Reason.KV_TRANSFER_FAILING, "not cured yet"
    assert not [action for action in second.actions if isinstance(action, SetRole)], "it does not get its role back"
    world.report_idle(p0)
    world.pass_time(3)
    deleted = [action for action in turn(world).actions if isinstance(action, DeleteWorker)]
    assert [action.name for action in deleted] == [p0]
    world.do(deleted[0])
    world.vanish(p0)
    for created in turn(world).actions:
        world.do(created)
    world.start(p0)
    assert world.workers[p0].uid != uid
    assert degraded(turn(world))[1] is Reason.KV_TRANSFER_FAILING
    world.pass_time(61)
    assert degraded(turn(world))[1] is Reason.HEALTHY


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 2), (2, 2), (3, 1)])
def test_a_fault_that_no_restart_cures_is_met_ever_more_seldom_and_never_empties_a_role(
    prefill: int, decode: int
) -> None:
    """The network is down for an hour: every pair fails, whatever is restarted."""
    world = standing(prefill, decode)
    restarts: list[float] = []
    began = world.now
    prefills, decodes = by_role(world, Role.PREFILL), by_role(world, Role.DECODE)
    while (world.now - began).total_seconds() < 3600:
        serving = [name for name, worker in world.workers.items() if worker.serving]
        reports(world, *(failing(p, d) for p in prefills for d in decodes if p in serving and d in serving))
        for action in turn(world).actions:
            if isinstance(action, TellRole):
                continue
            world.do(action)
            if isinstance(action, StartDrain):
                assert action.restart
                world.set(action.name, restart_asked=True)
                restarts.append((world.now - began).total_seconds())
            away = [worker for worker in world.workers.values() if not worker.serving]
            assert len(away) <= 1, "one at a time"
            assert served_roles(world.workers.values()) == BOTH
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            if world.workers.get(name) is not None and world.workers[name].role is Role.DRAINING:
                world.report_idle(name)
        world.pass_time(2)
    assert 1 <= len(restarts) <= 8 * (prefill + decode)
    later = [at for at in restarts if at > 1800]
    assert len(later) <= 2 * (prefill + decode)


def test_a_paused_cluster_is_only_reported() -> None:
    world = standing(2, 2)
    p0, d0, d1 = by_role(world, Role.PREFILL)[0], *by_role(world, Role.DECODE)
    reports(world, failing(p0, d0, works=(0, 1)), failing(p0, d1, works=(0, 1)))
    result = plan(replace(world.snapshot(), paused=True), world.now)
    assert not result.actions
    assert degraded(result)[1] is Reason.KV_TRANSFER_FAILING


def test_a_young_worker_is_given_time() -> None:
    world = standing(2, 2)
    p0, d0, d1 = by_role(world, Role.PREFILL)[0], *by_role(world, Role.DECODE)
    world.set(p0, created=world.now)
    reports(world, failing(p0, d0, works=(0, 1)), failing(p0, d1, works=(0, 1)))
    assert not drains(turn(world))
    world.pass_time(31)
    assert drains(turn(world)) == [p0]
    assert world.now > START
