"""What nobody foresaw must not freeze a cluster: pools that are gone, numbers that are none, clocks that jump."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.decide.loads import measurements, speed
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionStatus, ConditionType
from fulcrum.decide import decide
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.tuning import TUNING
from fulcrum.load.traffic import without_nonsense
from fulcrum.rollout import CreateWorker, DeleteWorker, SetRole, StartDrain

SLO = {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
SPEEDS = {"a": speed(), "b": speed(), "c": speed()}


def late(rate: float = 12.0) -> Measurements:
    """Load under which the promise is broken, so that the model is compared with what was measured."""
    return measurements(rate, 1500.0, 250.0, attainment=0.3, ttft_p90_seconds=3.0, speeds=SPEEDS)


@pytest.mark.parametrize("renamed", [None, "c"])
def test_a_pool_removed_or_renamed_under_traffic(renamed: str | None) -> None:
    world = World(make_spec(pool("a", low=2, high=4), pool("b", low=2, high=2), mode="Auto", slo=SLO))
    world.measurements = late()
    world.settle()
    world.pass_time(600)
    kept = [pool("a", low=2, high=4)] + ([pool(renamed, low=2, high=2)] if renamed else [])
    world.spec = make_spec(*kept, mode="Auto", slo=SLO)
    # The operator knows only the speeds of pools that the spec has.
    world.measurements = replace(late(), speeds={"a": speed()})
    decided = world.plan()
    assert {a.name for a in decided.actions if isinstance(a, StartDrain)} & {"c-b-0", "c-b-1"}
    assert not [c for c in decided.conditions if c.reason is Reason.PLAN_FAILED]
    world.measurements = replace(late(), speeds={"a": speed(), **({renamed: speed()} if renamed else {})})
    for _ in range(60):
        for action in world.plan().actions:
            world.do(action)
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            world.report_idle(name)
        world.pass_time(3)
    assert {worker.pool for worker in world.workers.values()} == {"a", *([renamed] if renamed else [])}


def test_a_pool_removed_while_no_worker_serves() -> None:
    """A layout with a pool that nobody knows is no error."""
    world = World(make_spec(pool("a", low=2, high=2), pool("b", low=1, high=1), mode="Auto", slo=SLO))
    world.measurements = late()
    world.settle()
    for name in world.workers:
        world.crash(name)
    world.spec = make_spec(pool("a", low=2, high=2), mode="Auto", slo=SLO)
    world.measurements = replace(late(), speeds={"a": speed()})
    decided = world.plan()
    assert [a.name for a in decided.actions if isinstance(a, DeleteWorker)] == ["c-b-0"]
    assert decided.trace.failure is None


def test_a_defect_of_the_balance_is_a_condition_and_dead_workers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(make_spec(pool("a", low=4, high=4), mode="Auto", slo=SLO))
    world.measurements = late()
    world.settle()
    before = world.roles()
    lost = world.workers.pop("c-a-2")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(decide, "gather", broken)
    decided = world.plan()
    assert [(a.name, a.role) for a in decided.actions if isinstance(a, CreateWorker)] == [("c-a-2", lost.role)]
    assert not [a for a in decided.actions if isinstance(a, StartDrain | SetRole | DeleteWorker)]
    conditions = {c.type: c for c in decided.conditions}
    degraded = conditions[ConditionType.DEGRADED]
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.PLAN_FAILED)
    assert "ZeroDivisionError: a defect" in degraded.message
    assert [event.reason for event in decided.events] == [Reason.PLAN_FAILED]
    for _ in range(10):
        for action in decided.actions:
            world.do(action)
        for name in world.workers:
            world.start(name)
        decided = world.plan()
    assert world.roles() == before
    assert {c.type: c.reason for c in decided.conditions}[ConditionType.PROGRESSING] is Reason.PLAN_FAILED


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
def test_figures_that_are_no_numbers_are_dropped(number: float) -> None:
    traffic = late().traffic
    assert traffic is not None
    for figure in ("isl_tokens", "osl_tokens", "attainment", "isl_cv2", "dispersion", "rejected", "ttft_p90_seconds"):
        cleaned, dropped = without_nonsense(replace(traffic, **{figure: number}))
        assert dropped == (figure,)
        assert cleaned == replace(traffic, **{figure: None})
    for figure in ("rate", "window_seconds"):
        assert without_nonsense(replace(traffic, **{figure: number})) == (None, (figure,))
    shares = replace(traffic, rejections={Reason.OVERLOADED: number, Reason.QUEUE_FULL: 0.1})
    assert without_nonsense(shares) == (replace(traffic, rejections={Reason.QUEUE_FULL: 0.1}), ("rejections",))
    assert without_nonsense(traffic) == (traffic, ())


@pytest.mark.parametrize(
    "ahead", [timedelta(seconds=5), timedelta(seconds=TUNING.clock_skew_seconds), timedelta(days=400)]
)
@pytest.mark.parametrize("field", ["draining_since", "role_since", "created", "ready_since"])
def test_a_time_from_the_future_blocks_nothing(field: str, ahead: timedelta) -> None:
    world = World(make_spec(pool("a", low=4, high=4), mode="Manual"))
    world.settle()
    if field == "draining_since":
        world.set("c-a-3", role=Role.DRAINING, draining_from=Role.DECODE)
    world.set("c-a-3", **{field: world.now + ahead})
    world.spec = make_spec(pool("a", low=0, high=3), mode="Manual")
    for _ in range(100):
        for action in world.plan().actions:
            world.do(action)
        world.vanish("c-a-3")
        world.pass_time(5)
    # Its load was never known: it went when its drain had timed out.
    assert sorted(world.workers) == ["c-a-0", "c-a-1", "c-a-2"]


def test_automatic_flips_go_on_after_the_clock_was_set_back() -> None:
    world = World(make_spec(pool("a", low=4, high=4), mode="Auto", slo=SLO))
    world.measurements = measurements(30.0, 3000.0, 50.0, pools=("a",))
    world.settle()
    for name in world.workers:
        world.set(name, role_since=world.now + timedelta(days=1), ready_since=world.now + timedelta(days=1))
    world.measurements = measurements(12.0, 200.0, 1000.0, pools=("a",))
    assert [a for a in world.plan().actions if isinstance(a, SetRole)]
