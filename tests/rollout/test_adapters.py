"""The condition Degraded names LoRA adapters that a worker cannot load, and what to do."""

from __future__ import annotations

from dataclasses import replace

from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdapterStatus, Condition, ConditionStatus, ConditionType
from fulcrum.report import BalancePlan, plan


def planned(made: World, *adapters: AdapterStatus) -> BalancePlan:
    made.measurements = replace(measurements(5.0), adapters=adapters)
    result = plan(made.snapshot(), made.now)
    made.status = result.status
    return result


def degraded(result: BalancePlan) -> Condition:
    return next(c for c in result.conditions if c.type is ConditionType.DEGRADED)


def status(name: str, message: str | None = None) -> AdapterStatus:
    return AdapterStatus(name=name, loaded=0 if message else 4, workers=4, message=message)


def test_what_does_not_load_is_named_until_it_does() -> None:
    made = World(make_spec(pool(low=2, high=4), ratio=(2, 2)))
    made.settle()
    assert degraded(planned(made, status("sql"), status("tone"))).reason is Reason.HEALTHY
    result = planned(made, status("sql"), status("tone", "its rank is 64: raise maxRank"))
    said = degraded(result)
    assert (said.status, said.reason) == (ConditionStatus.TRUE, Reason.ADAPTER_NOT_LOADED)
    assert said.message == (
        "Adapter tone is not loaded on every ready worker; the model and other adapters are served. "
        "tone: its rank is 64: raise maxRank."
    )
    assert not [event for event in result.events if event.reason is Reason.ADAPTER_NOT_LOADED], "it has its own event"
    both = degraded(planned(made, status("sql", "put it there"), status("tone", "raise maxRank")))
    assert both.message.startswith("Adapters sql, tone are not loaded")
    assert degraded(planned(made, status("sql"), status("tone"))).reason is Reason.HEALTHY
