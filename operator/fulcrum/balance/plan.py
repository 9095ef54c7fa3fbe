"""`plan(snapshot, now)`: the whole decision about one InferenceCluster, without I/O, clock or memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    BalanceMode,
    Condition,
    ConditionStatus,
    ConditionType,
    InferenceClusterStatus,
)
from fulcrum.balance.actions import Action, CreateWorker, changes_cluster
from fulcrum.balance.conditions import Finding, settle
from fulcrum.balance.decide import decide, hold, manual
from fulcrum.balance.decision import Decision, RoleScale, Trace
from fulcrum.balance.external import follow_scales
from fulcrum.balance.faults import ENGINE_LINES_BYTES, fault_of, first_bytes
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.last_applied import last_applied
from fulcrum.balance.measurements import Measurements
from fulcrum.balance.rollout import Surge, halted_pools, surge_of, with_revisions
from fulcrum.balance.snapshot import Snapshot, roles_served
from fulcrum.balance.status import recommendation_text, status_of, stopped_status
from fulcrum.balance.step_context import StepContext
from fulcrum.balance.steps import STEPS
from fulcrum.balance.target import ratio_text
from fulcrum.balance.tuning import TUNING

__all__ = [
    "RESYNC_SECONDS",
    "TICK_SECONDS",
    "Plan",
    "PlanEvent",
    "plan",
    "ratio_text",
    "stopped_status",
    "with_failure",
]

RESYNC_SECONDS: Final = 300.0
"""Watches can lose an event; a cluster is looked at this often even when nothing happens."""
TICK_SECONDS: Final = 2.0
"""How often a cluster is looked at while something moves: the load, a worker that starts, an action whose event may be
lost, KV that did not move between workers."""
DRAIN_POLL_SECONDS: Final = 0.5
"""How often a draining worker is asked whether it is idle: its GPUs wait for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """An event about the cluster's state; events about actions are made from the actions."""

    reason: Reason
    message: str
    warning: bool
    subject: str
    """What makes the event one of its kind: the same subject gives the same event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, what to say about it, and when to look again."""

    actions: tuple[Action, ...]
    status: InferenceClusterStatus
    events: tuple[PlanEvent, ...]
    requeue_after_seconds: float
    least_available: int = 0
    """Ready workers that evictions must leave: all but one of the workers that can serve."""
    target: Mapping[Role, int] = field(default_factory=dict)
    """Workers per role that are to be, roles with none left out."""
    trace: Trace = field(default_factory=Trace)
    """Figures behind an automatic decision, for metrics; empty in mode Manual."""
    scales: tuple[RoleScale, ...] = ()
    """What each InferenceScale gets, in mode External; none where the balance failed."""
    observed_only: bool = False
    """`status.last_decision` says what mode Auto would do: it stands although nothing was carried out."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the status will have."""
        return self.status.conditions


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Decide what to do next about one InferenceCluster. `now` is an aware time."""
    snapshot = with_revisions(snapshot.as_of(now))
    halted = frozenset(halted_pools(snapshot))
    surge = surge_of(snapshot.workers)
    # A worker that is to replace another one and that other one are one place.
    seen = replace(snapshot, workers=tuple(w for w in snapshot.workers if w.uid not in surge.uids))
    decision = _with_surge(_choose(seen, now), surge, halted)
    actions = () if snapshot.paused else _actions(snapshot, decision, halted, now)
    least_available = _least_available(snapshot, decision, now)
    status = status_of(snapshot, decision, actions, halted, now, least_available=least_available)
    return Plan(
        actions=actions,
        status=status,
        events=_events(snapshot.status, status),
        requeue_after_seconds=_requeue_seconds(snapshot, actions, status),
        least_available=least_available,
        target=(decision.proposal or decision).assignment.counts,
        trace=decision.trace,
        scales=decision.scales,
        observed_only=decision.proposal is not None,
    )


def _choose(snapshot: Snapshot, now: datetime) -> Decision:
    if snapshot.spec.balance.mode is BalanceMode.MANUAL:
        return manual(snapshot)
    try:
        if snapshot.spec.balance.mode is BalanceMode.EXTERNAL:
            return follow_scales(snapshot, now)
        return decide(snapshot, now)
    except Exception as error:  # noqa: BLE001 (a defect in the balance must not keep dead workers from being replaced)
        # Without speeds and load: nothing is left that the performance model could trip over again.
        blind = replace(snapshot, measurements=Measurements())
        counts = last_applied(snapshot.spec, snapshot.workers, snapshot.status.roles)
        decision = hold(blind, counts, now, repair=False)
        return replace(decision, trace=Trace(failure=error, routes=None))


def _with_surge(decision: Decision, surge: Surge, halted: frozenset[str]) -> Decision:
    """Return the decision with the workers that stand twice for one place; workers that are not needed any more go."""
    going = [w for w in surge.superseded if w.pool not in halted or w.role is Role.DRAINING]
    surplus = (*decision.assignment.surplus, *surge.obsolete, *going)
    return replace(decision, assignment=replace(decision.assignment, surplus=surplus, surge=surge))


def _actions(snapshot: Snapshot, decision: Decision, halted: frozenset[str], now: datetime) -> tuple[Action, ...]:
    assignment = decision.assignment
    needed = frozenset[Role]().union(*(roles_served(role) for role in assignment.counts))
    context = StepContext(
        now=now,
        cluster=snapshot.name,
        spec=snapshot.spec,
        workers=snapshot.workers,
        status=snapshot.status,
        pairs=snapshot.measurements.pairs,
        taken_names=snapshot.taken_names,
        assignment=assignment,
        halted=halted,
        drain_timeout=timedelta(seconds=seconds(snapshot.spec.balance.flip.drain_timeout)),
        guard=RoleGuard(snapshot.workers, needed),
        touched=set(),
        reasons=decision.reasons,
    )
    actions: list[Action] = []
    for step in STEPS:
        for action in step(context):
            if isinstance(action, CreateWorker) and action.pool in snapshot.refused:
                continue
            if action.name not in context.touched:
                context.touched.add(action.name)
                actions.append(action)
    return tuple(actions)


def _least_available(snapshot: Snapshot, decision: Decision, now: datetime) -> int:
    """Return how many ready workers an eviction must leave, so that nodes drain one worker at a time.

    Workers that are wanted and still start count: the next eviction waits for them. Workers that cannot start do not:
    else no node would ever drain. Of several workers the last that serves stays.
    """
    usual = timedelta(seconds=snapshot.measurements.start_seconds or TUNING.start_seconds)
    slots = decision.assignment.slots
    able = sum(
        slot.worker is None
        or fault_of(slot.worker, snapshot.spec, now) is None
        # A node may still come.
        or (
            slot.worker.unschedulable is not None
            and slot.worker.created is not None
            and now - slot.worker.created < usual
        )
        for slot in slots
    )
    return max(able - 1, min(able, 1) if len(slots) > 1 else 0)


def _events(last: InferenceClusterStatus, status: InferenceClusterStatus) -> tuple[PlanEvent, ...]:
    return (*_degraded_event(last, status), *_drift_event(last, status))


def _drift_event(last: InferenceClusterStatus, status: InferenceClusterStatus) -> tuple[PlanEvent, ...]:
    found, before = status.recommendation, last.recommendation
    if found is None or (before is not None and before.since == found.since):
        return ()
    message = recommendation_text(found)
    return (PlanEvent(reason=Reason.PLACEMENT_DRIFTED, message=message, warning=False, subject=found.since),)


def _degraded_event(last: InferenceClusterStatus, status: InferenceClusterStatus) -> tuple[PlanEvent, ...]:
    before = {c.type: c for c in last.conditions}.get(ConditionType.DEGRADED)
    after = next(c for c in status.conditions if c.type is ConditionType.DEGRADED)
    said = before is not None and before.status is ConditionStatus.TRUE and before.reason is after.reason
    if after.status is not ConditionStatus.TRUE or said:
        return ()
    return (PlanEvent(reason=after.reason, message=after.message, warning=True, subject=after.last_transition_time),)


def _requeue_seconds(snapshot: Snapshot, actions: tuple[Action, ...], status: InferenceClusterStatus) -> float:
    if snapshot.paused:
        return RESYNC_SECONDS
    if any(worker.role is Role.DRAINING and not worker.deleting for worker in snapshot.workers):
        return DRAIN_POLL_SECONDS
    decides = snapshot.spec.balance.mode is not BalanceMode.MANUAL
    faulty = any(condition.reason is Reason.KV_TRANSFER_FAILING for condition in status.conditions)
    moves = any(w.stale or w.deleting or not w.ready or not w.role_acknowledged for w in snapshot.workers)
    if decides or faulty or moves or any(changes_cluster(action) for action in actions):
        return TICK_SECONDS
    return RESYNC_SECONDS


def with_failure(
    result: Plan,
    message: str,
    *,
    last: InferenceClusterStatus,
    generation: int,
    now: datetime,
    reason: Reason = Reason.RECONCILE_FAILED,
) -> Plan:
    """Return the plan with Progressing saying that something could not be done; a taken name degrades, too.

    `last` is the status that stands: transition times are carried over from it.
    """
    text = first_bytes(message, ENGINE_LINES_BYTES)
    findings = [Finding(ConditionType.PROGRESSING, False, reason, text)]
    if reason is Reason.NAME_TAKEN:
        findings.append(Finding(ConditionType.DEGRADED, True, reason, text))
    replaced = {finding.type for finding in findings}
    others = tuple(c for c in result.status.conditions if c.type not in replaced)
    before = tuple(c for c in last.conditions if c.type in replaced)
    base = msgspec.structs.replace(result.status, conditions=(*others, *before))
    conditions = settle(findings, status=base, generation=generation, now=now)
    return replace(result, status=msgspec.structs.replace(result.status, conditions=conditions))
