"""`plan(snapshot, now)`: the whole decision about one InferenceCluster, without I/O, clock or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from fulcrum.api.durations import seconds
from fulcrum.api.names import PORT_GATEWAY, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    BalanceMode,
    Condition,
    ConditionStatus,
    ConditionType,
    Decision,
    InferenceClusterStatus,
    RoleCounts,
)
from fulcrum.balance.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain, changes_cluster
from fulcrum.balance.assignment import assign
from fulcrum.balance.auto import choose
from fulcrum.balance.choice import Choice, Insight
from fulcrum.balance.conditions import (
    ENGINE_LINES_BYTES,
    Finding,
    available,
    degraded,
    first_bytes,
    progressing,
    settle,
    timestamp,
)
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.revision import worker_revision
from fulcrum.balance.snapshot import Snapshot, Worker, roles_served
from fulcrum.balance.steps import STEPS, Turn
from fulcrum.balance.target import Target, make_target, ratio_text

__all__ = [
    "RESYNC_SECONDS",
    "TICK_SECONDS",
    "Plan",
    "PlanEvent",
    "invalid_status",
    "plan",
    "ratio_text",
    "with_failure",
]

RESYNC_SECONDS: Final = 300.0
"""Watches can lose an event; a cluster is looked at this often even when nothing happens."""
DRAIN_POLL_SECONDS: Final = 0.5
TELL_SECONDS: Final = 5.0
"""How soon an agent that did not hear its role is told again."""
TICK_SECONDS: Final = 2.0
"""How often modes Auto and Observe look at queues and attainment."""

ACTED_SECONDS: Final = 2.0
"""Watches report what an action did within milliseconds; this is for the report that got lost."""


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
    target: Mapping[Role, int] = field(default_factory=dict)
    """Workers per role that are to be, roles with none left out."""
    insight: Insight = field(default_factory=Insight)
    """Figures behind an automatic decision, for metrics; empty in mode Manual."""
    observed_only: bool = False
    """`status.last_decision` says what mode Auto would do: it stands although nothing was carried out."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the status will have."""
        return self.status.conditions


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Decide what to do next about one InferenceCluster. `now` is an aware time."""
    choice = _choose(snapshot, now)
    actions = () if snapshot.paused else _actions(snapshot, choice, now)
    status = _status(snapshot, choice, actions, now)
    return Plan(
        actions=actions,
        status=status,
        events=_events(snapshot, status),
        requeue_after_seconds=_requeue_seconds(snapshot, actions),
        target=(choice.proposal or choice).target.counts(),
        insight=choice.insight,
        observed_only=choice.proposal is not None,
    )


def _choose(snapshot: Snapshot, now: datetime) -> Choice:
    if snapshot.spec.balance.mode is not BalanceMode.MANUAL:
        return choose(snapshot, now)
    target = make_target(snapshot.spec)
    return Choice(target=target, assignment=assign(snapshot, target))


def _actions(snapshot: Snapshot, choice: Choice, now: datetime) -> tuple[Action, ...]:
    assignment = choice.assignment
    needed = frozenset[Role]().union(*(roles_served(role) for role in assignment.roles))
    turn = Turn(
        now=now,
        snapshot=snapshot,
        target=choice.target,
        assignment=assignment,
        revisions={
            pool.name: worker_revision(cluster=snapshot.name, spec=snapshot.spec, pool=pool)
            for pool in snapshot.spec.pools
        },
        drain_timeout=timedelta(seconds=seconds(snapshot.spec.balance.flip.drain_timeout)),
        guard=RoleGuard(snapshot.workers, needed),
        touched=set(),
        reasons=choice.reasons,
    )
    actions: list[Action] = []
    for step in STEPS:
        for action in step(turn):
            if action.name not in turn.touched:
                turn.touched.add(action.name)
                actions.append(action)
    return tuple(actions)


def _status(snapshot: Snapshot, choice: Choice, actions: tuple[Action, ...], now: datetime) -> InferenceClusterStatus:
    target, assignment = choice.target, choice.assignment
    findings = (
        available(snapshot),
        progressing(snapshot, choice, actions),
        degraded(snapshot, choice),
    )
    ready = sum(1 for slot in assignment.slots if slot.worker is not None and slot.worker.ready)
    address = snapshot.gateway.cluster_ip
    decision = _decision(snapshot, target, actions, now)
    if decision is None and choice.proposal is not None:
        decision = _proposed(snapshot, choice, choice.proposal, now)
    return InferenceClusterStatus(
        observed_generation=snapshot.generation,
        conditions=settle(findings, status=snapshot.status, generation=snapshot.generation, now=now),
        endpoint=f"http://{address}:{PORT_GATEWAY}" if address else None,
        ratio=ratio_text(_counts(w for w in snapshot.workers if w.serving)),
        ready=f"{ready}/{len(assignment.slots)}",
        roles=_role_counts(snapshot, target),
        last_decision=decision or snapshot.status.last_decision,
    )


def _counts(workers: Iterable[Worker]) -> dict[Role, int]:
    counts: dict[Role, int] = {}
    for worker in workers:
        counts[worker.role] = counts.get(worker.role, 0) + 1
    return counts


def _role_counts(snapshot: Snapshot, target: Target) -> dict[Role, RoleCounts]:
    desired = target.counts()
    ready = _counts(w for w in snapshot.workers if w.serving)
    draining: dict[Role, int] = {}
    for worker in snapshot.workers:
        if worker.role is Role.DRAINING and not worker.deleting and worker.draining_from is not None:
            draining[worker.draining_from] = draining.get(worker.draining_from, 0) + 1
    roles: dict[Role, RoleCounts] = {}
    for role in (Role.PREFILL, Role.DECODE, Role.MIXED):
        counts = RoleCounts(desired=desired.get(role, 0), ready=ready.get(role, 0), draining=draining.get(role, 0))
        if counts.desired or counts.ready or counts.draining:
            roles[role] = counts
    return roles


def _decision(snapshot: Snapshot, target: Target, actions: tuple[Action, ...], now: datetime) -> Decision | None:
    """Summarise a plan in one line; flips first, because they are what an operator on call looks for."""
    for kind, verb in ((SetRole, "Flip"), (StartDrain, "Drain"), (DeleteWorker, "Delete"), (CreateWorker, "Create")):
        chosen = [action for action in actions if isinstance(action, kind)]
        if chosen:
            return Decision(
                action=f"{verb} {', '.join(action.name for action in chosen[:4])}{' ...' if chosen[4:] else ''}",
                reason=chosen[0].reason,
                from_=ratio_text(_counts(w for w in snapshot.workers if not w.deleting and not w.ended)),
                to=ratio_text(target.counts()),
                time=timestamp(now),
            )
    return None


def _proposed(snapshot: Snapshot, choice: Choice, proposal: Choice, now: datetime) -> Decision | None:
    """Return what mode Auto would do; the one that stands while it would still be the same."""
    have, want = ratio_text(choice.target.counts()), ratio_text(proposal.target.counts())
    if have == want:
        return None
    decision = Decision(
        action=f"Observed only: Auto would go from {have} to {want}",
        reason=proposal.insight.reason or Reason.OBSERVING,
        from_=have,
        to=want,
        time=timestamp(now),
    )
    standing = snapshot.status.last_decision
    same = standing is not None and (standing.action, standing.reason) == (decision.action, decision.reason)
    return standing if same else decision


def _events(snapshot: Snapshot, status: InferenceClusterStatus) -> tuple[PlanEvent, ...]:
    before = {c.type: c for c in snapshot.status.conditions}.get(ConditionType.DEGRADED)
    after = next(c for c in status.conditions if c.type is ConditionType.DEGRADED)
    standing = before is not None and before.status is ConditionStatus.TRUE and before.reason is after.reason
    if after.status is not ConditionStatus.TRUE or standing:
        return ()
    return (PlanEvent(reason=after.reason, message=after.message, warning=True, subject=after.last_transition_time),)


def _requeue_seconds(snapshot: Snapshot, actions: tuple[Action, ...]) -> float:
    if snapshot.paused:
        return RESYNC_SECONDS
    if any(worker.role is Role.DRAINING and not worker.deleting for worker in snapshot.workers):
        return DRAIN_POLL_SECONDS
    if any(changes_cluster(action) for action in actions):
        return ACTED_SECONDS
    if snapshot.spec.balance.mode is not BalanceMode.MANUAL:
        return TICK_SECONDS
    if any(worker.ready and not worker.role_told for worker in snapshot.workers):
        return TELL_SECONDS
    return RESYNC_SECONDS


def with_failure(result: Plan, message: str, *, snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan with Progressing saying that the API server refused something."""
    finding = Finding(
        type=ConditionType.PROGRESSING,
        status=False,
        reason=Reason.RECONCILE_FAILED,
        message=first_bytes(message, ENGINE_LINES_BYTES),
    )
    standing = {c.type: c for c in snapshot.status.conditions}
    others = tuple(c for c in result.status.conditions if c.type is not ConditionType.PROGRESSING)
    before = (standing[ConditionType.PROGRESSING],) if ConditionType.PROGRESSING in standing else ()
    base = msgspec.structs.replace(result.status, conditions=(*others, *before))
    conditions = settle([finding], status=base, generation=snapshot.generation, now=now)
    return replace(result, status=msgspec.structs.replace(result.status, conditions=conditions))


def invalid_status(
    message: str, *, status: InferenceClusterStatus, generation: int, now: datetime
) -> InferenceClusterStatus:
    """Return the status of an object whose spec cannot be read; what runs is left as it is."""
    text = f"The spec cannot be used: {first_bytes(message, ENGINE_LINES_BYTES)}"
    findings = (
        Finding(type=ConditionType.PROGRESSING, status=False, reason=Reason.INVALID_SPEC, message=text),
        Finding(type=ConditionType.DEGRADED, status=True, reason=Reason.INVALID_SPEC, message=text),
    )
    conditions = settle(findings, status=status, generation=generation, now=now)
    return msgspec.structs.replace(status, conditions=conditions, observed_generation=generation)
