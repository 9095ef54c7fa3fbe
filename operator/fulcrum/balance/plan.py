"""`plan(snapshot, now)`: the whole decision about one InferenceCluster, without I/O, clock or memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode, Condition, InferenceClusterStatus
from fulcrum.balance.actions import Action, CreateWorker, changes_cluster
from fulcrum.balance.decide import decide, hold, manual
from fulcrum.balance.decision import Decision, RoleScale, Trace
from fulcrum.balance.external import follow_scales
from fulcrum.balance.faults import fault_of
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.last_applied import last_applied
from fulcrum.balance.measurements import Measurements
from fulcrum.balance.rollout import rollout_of, with_revisions
from fulcrum.balance.snapshot import Snapshot
from fulcrum.balance.status import PlanEvent, events_of, status_of
from fulcrum.balance.step_context import StepContext
from fulcrum.balance.steps import STEPS
from fulcrum.balance.transfers import TransferFaults, transfer_faults
from fulcrum.balance.tuning import TUNING

RESYNC_SECONDS: Final = 300.0
"""Watches can lose an event; a cluster is looked at this often even when nothing happens."""
TICK_SECONDS: Final = 2.0
"""How often a cluster is looked at while something moves: the load, a worker that starts, an action whose event may be
lost, KV that did not move between workers."""
DRAIN_POLL_SECONDS: Final = 0.5
"""How often a draining worker is asked whether it is idle: its GPUs wait for that."""


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
    rollout = rollout_of(snapshot)
    # A worker that is to replace another one and that other one are one place.
    single = replace(snapshot, workers=tuple(w for w in snapshot.workers if w.uid not in rollout.uids))
    decision = _choose(single, now)
    surplus = (*decision.assignment.surplus, *rollout.leaving)
    decision = replace(decision, assignment=replace(decision.assignment, surplus=surplus, rollout=rollout))
    transfers = transfer_faults(snapshot.workers, snapshot.measurements.pairs, snapshot.status, now)
    actions = () if snapshot.paused else _actions(snapshot, decision, transfers, now)
    least_available = _least_available(snapshot, decision, now)
    status = status_of(snapshot, decision, actions, now, transfers=transfers, least_available=least_available)
    return Plan(
        actions=actions,
        status=status,
        events=events_of(snapshot.status, status),
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


def _actions(snapshot: Snapshot, decision: Decision, transfers: TransferFaults, now: datetime) -> tuple[Action, ...]:
    context = StepContext(
        now=now,
        cluster=snapshot.name,
        spec=snapshot.spec,
        workers=snapshot.workers,
        taken_names=snapshot.taken_names,
        transfers=transfers,
        assignment=decision.assignment,
        reasons=decision.reasons,
        guard=RoleGuard(snapshot.workers, decision.assignment.needed),
        touched=set(),
    )
    actions: list[Action] = []
    for step in STEPS:
        for action in step(context):
            refused = isinstance(action, CreateWorker) and action.pool in snapshot.refused
            if action.name not in context.touched and not refused:
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
