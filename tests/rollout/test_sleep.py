"""When a cluster falls asleep, when it wakes, and to which workers: by values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionStatus, ConditionType, SleepState
from fulcrum.decide.measurements import Callers, Measurements
from fulcrum.report import BalancePlan
from fulcrum.rollout import CreateWorker, StartDrain
from fulcrum.rollout.sleep import smallest

IDLE = 600.0
QUIET = Callers(quiet_seconds=IDLE)


def world(*pools: dict[str, Any]) -> World:
    spec = make_spec(*pools, mode="Auto", slo={"ttft": "500ms", "tpot": "25ms"})
    return World(msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, idle_after="10m")))


def awake(*pools: dict[str, Any]) -> World:
    made = world(*pools)
    made.measurements = measurements(0.0, 300.0, 50.0)
    made.settle()
    made.pass_time(2 * IDLE)
    return made


def asleep(*pools: dict[str, Any]) -> World:
    made = awake(*pools)
    hear(made, QUIET)
    made.settle()
    made.pass_time(60)
    made.settle()
    assert made.status.sleep is not None
    assert (made.status.sleep.state, made.workers) == (SleepState.ASLEEP, {})
    return made


def hear(made: World, callers: Callers, *, expected: float | None = None) -> None:
    known = measurements(0.0, 300.0, 50.0)
    made.measurements = Measurements(
        traffic=known.traffic,
        speeds=known.speeds,
        start_seconds=120.0,
        callers=callers,
        load_expected_seconds=expected,
    )


def state(result: BalancePlan) -> str:
    assert result.status.sleep is not None
    return result.status.sleep.state


@pytest.mark.parametrize(
    ("callers", "expected", "sleeps"),
    [
        (QUIET, None, True),
        (QUIET, 86_400.0, True),
        (Callers(quiet_seconds=IDLE - 1), None, False),
        (Callers(quiet_seconds=IDLE, held=1), None, False),
        (Callers(), None, False),
        (Callers(silent_seconds=3600.0), None, False),
        (QUIET, 120.0, False),
        (QUIET, 120.0 + 60.0 + 2.0 + IDLE, False),
        (QUIET, 120.0 + 60.0 + 2.0 + IDLE + 1, True),
    ],
)
def test_a_cluster_falls_asleep_only_after_a_calm(callers: Callers, expected: float | None, sleeps: bool) -> None:
    made = awake()
    hear(made, callers, expected=expected)
    result = made.plan()
    drains = [action for action in result.actions if isinstance(action, StartDrain)]
    assert state(result) == (SleepState.FALLING_ASLEEP if sleeps else SleepState.AWAKE)
    assert len(drains) == (len(made.workers) if sleeps else 0)
    assert {drain.reason for drain in drains} <= {Reason.FELL_ASLEEP}
    assert [event.reason for event in result.events] == ([Reason.FELL_ASLEEP] if sleeps else [])


def test_a_cluster_that_just_woke_stays_awake() -> None:
    made = awake()
    assert made.status.sleep is not None
    made.status = msgspec.structs.replace(
        made.status, sleep=msgspec.structs.replace(made.status.sleep, since=made.now.isoformat())
    )
    hear(made, QUIET)
    assert state(made.plan()) == SleepState.AWAKE


@pytest.mark.parametrize(
    ("callers", "expected", "wakes"),
    [
        (Callers(quiet_seconds=9999.0), None, False),
        (Callers(quiet_seconds=5.0), None, False),  # a gateway was restarted, and had no request
        (Callers(held=1), None, True),
        (Callers(quiet_seconds=0.5, idle_seconds=0.5), None, True),  # the client left at once, and may come back
        (Callers(silent_seconds=59.0), None, False),
        (Callers(silent_seconds=61.0), None, True),
        (QUIET, 183.0, False),
        (QUIET, 182.0, True),
    ],
)
def test_a_cluster_wakes_for_a_request_or_by_the_hour(callers: Callers, expected: float | None, wakes: bool) -> None:
    made = asleep()
    hear(made, callers, expected=expected)
    result = made.plan()
    created = [action for action in result.actions if isinstance(action, CreateWorker)]
    assert state(result) == (SleepState.WAKING if wakes else SleepState.ASLEEP)
    assert [(action.role, action.reason) for action in created] == ([(Role.MIXED, Reason.WAKING)] if wakes else [])


def test_a_cluster_at_rest_changes_nothing() -> None:
    made = asleep()
    hear(made, Callers(quiet_seconds=1200.0))
    before = made.status
    result = made.plan()
    assert not result.actions
    assert result.status == before
    assert {c.type: (c.status, c.reason) for c in result.conditions} == {
        ConditionType.AVAILABLE: (ConditionStatus.TRUE, Reason.ASLEEP),
        ConditionType.PROGRESSING: (ConditionStatus.FALSE, Reason.RECONCILED),
        ConditionType.DEGRADED: (ConditionStatus.FALSE, Reason.HEALTHY),
    }


def test_what_is_held_wakes_until_it_is_served() -> None:
    made = asleep()
    hear(made, Callers(held=3, quiet_seconds=0.0, idle_seconds=0.0))
    made.settle()
    made.pass_time(2)
    result = made.plan()
    assert state(result) == SleepState.AWAKE
    assert made.roles() == {Role.MIXED: 1}
    assert result.status.sleep is not None
    assert result.status.sleep.held == 3


def test_a_request_while_workers_drain_keeps_them() -> None:
    made = awake()
    hear(made, QUIET)
    for action in made.plan().actions:
        made.do(action)
    before = set(made.workers)
    hear(made, Callers(held=1, quiet_seconds=0.0, idle_seconds=0.0))
    made.settle()
    assert set(made.workers) == before
    assert made.status.sleep is not None
    assert made.status.sleep.state == SleepState.AWAKE


def test_a_load_that_needs_more_wakes_more_than_the_smallest() -> None:
    made = asleep()
    known = measurements(30.0, 3000.0, 50.0)
    made.measurements = Measurements(traffic=known.traffic, speeds=known.speeds, callers=Callers(held=50))
    made.settle()
    assert sum(made.roles().values()) > 1


def test_no_pod_can_be_made() -> None:
    made = asleep()
    hear(made, Callers(held=1))
    made.plan()
    made.pass_time(31)
    result = made.plan()
    degraded = next(c for c in result.conditions if c.type is ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.WAKE_FAILED)
    assert "kubectl get resourcequota" in degraded.message
    assert [event.reason for event in result.events] == [Reason.WAKE_FAILED]


def test_a_start_is_finished_before_it_is_given_up() -> None:
    made = asleep()
    hear(made, Callers(held=1))
    made.plan()
    hear(made, Callers(quiet_seconds=IDLE, idle_seconds=IDLE))
    made.pass_time(IDLE)
    assert state(made.plan()) == SleepState.WAKING
    hear(made, Callers(quiet_seconds=4 * 3600.0, idle_seconds=4 * 3600.0))
    made.pass_time(4 * 3600)
    assert made.plan().status.sleep.state != SleepState.WAKING  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([pool("a")], {"a": 1}),
        ([pool("a", roles=("prefill", "decode"), high=1)], {"a": 1}),
        ([pool("a", roles=("prefill",)), pool("b", roles=("decode",))], {"a": 1, "b": 1}),
        ([pool("a", roles=("prefill",)), pool("b", roles=("decode",)), pool("c")], {"a": 0, "b": 0, "c": 1}),
        ([{**pool("a"), "admits": {"maxPromptTokens": 100}}, pool("b")], {"a": 0, "b": 1}),
        ([pool("a", high=0), pool("b")], {"a": 0, "b": 1}),
    ],
)
def test_the_smallest_layout_that_serves(pools: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert smallest(make_spec(*pools)) == expected


def test_gateways_that_can_wake_a_cluster_are_asked_as_often_where_nothing_is_known() -> None:
    made = awake()
    made.measurements = Measurements(unknown="nobody answers")
    result = made.plan()
    assert not result.calm
    assert not result.held


def test_without_idle_after_nothing_sleeps() -> None:
    made = World(make_spec(mode="Auto"))
    made.measurements = Measurements(callers=Callers(quiet_seconds=1e6))
    made.settle()
    made.pass_time(1e6)
    assert made.plan().status.sleep is None
    assert made.workers
