"""A profile that cannot be used is a condition and an event; nothing else comes of it."""

from __future__ import annotations

from dataclasses import replace

from tests.decide.world import World, make_spec, pool

from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.report import plan

WRONG = "spec.pools[] p, profile: ConfigMap ml/speeds does not exist; create it."


def test_a_profile_that_cannot_be_used_is_said_once_and_changes_nothing() -> None:
    world = World(make_spec(pool()))
    world.settle()
    snapshot = replace(world.snapshot(), profile_problems=(WRONG,))
    result = plan(snapshot, world.now)
    degraded = next(each for each in result.conditions if each.type is ConditionType.DEGRADED)
    assert degraded.reason is Reason.PROFILE_UNUSABLE
    assert degraded.message == f"{WRONG} Until then the balance reckons without it."
    assert result.actions == plan(world.snapshot(), world.now).actions
    assert [(event.reason, event.warning) for event in result.events] == [(Reason.PROFILE_UNUSABLE, True)]
    later = plan(replace(snapshot, status=result.status), world.now)
    assert later.events == ()
    healthy = plan(replace(snapshot, status=result.status, profile_problems=()), world.now)
    assert next(e for e in healthy.conditions if e.type is ConditionType.DEGRADED).reason is Reason.HEALTHY
