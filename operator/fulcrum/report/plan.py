"""`plan(snapshot, now)`: the whole decision about one InferenceCluster, without I/O, clock or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode, Condition, InferenceClusterStatus
from fulcrum.api.worker import EngineSleepState
from fulcrum.capacity.start_timeout import start_timeout
from fulcrum.decide.assign import Assignment
from fulcrum.decide.decide import decide, hold, manual
from fulcrum.decide.decision import BalanceDecision, Reasons, RoleScale, Trace
from fulcrum.decide.external import follow_scales
from fulcrum.decide.rehearsed import Wanted
from fulcrum.decide.replacements import rollout_of
from fulcrum.decide.size import last_applied
from fulcrum.decide.snapshot import ObservedWorker, Snapshot, WorkerPhase
from fulcrum.decide.tuning import TUNING
from fulcrum.report.status import PlanEvent, events_of, status_of
from fulcrum.rollout.actions import Action, changes_cluster
from fulcrum.rollout.engine_sleep import sleepers
from fulcrum.rollout.faults import Faults, faults_of
from fulcrum.rollout.sleep import sleep_of, smallest, wakes_from_nothing
from fulcrum.rollout.step_context import next_actions, step_context
from fulcrum.rollout.steps import STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    """What to do now, what to say about it, and when to look again."""

    actions: tuple[Action, ...]
    status: InferenceClusterStatus
    events: tuple[PlanEvent, ...]
    requeue_after_seconds: float
    calm: bool = False
    """Nothing moves, and nothing is wrong or looked for, or nothing can be decided: it may be looked at less often."""
    held: bool = False
    """What a decision needs is not known, so what stands is held: no decision rests on the next look."""
    least_available: int = 0
    """Ready workers that evictions must leave: all but one of the workers that can serve."""
    target: Mapping[Role, int] = field(default_factory=dict)
    """Workers per role that are to be, roles with none left out."""
    trace: Trace = field(default_factory=Trace)
    """Figures behind an automatic decision, for metrics; empty in mode Manual."""
    scales: tuple[RoleScale, ...] = ()
    """What each InferenceScale gets, in mode External; none where the balance failed."""
    wanted: Wanted | None = None
    """What is to be rehearsed; a later snapshot has the answer."""
    observed_only: bool = False
    """`status.last_decision` says what mode Auto would do: it stands although nothing was carried out."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the status will have."""
        return self.status.conditions


def plan(snapshot: Snapshot, now: datetime) -> BalancePlan:
    """Decide what to do next about one InferenceCluster. `now` is an aware time."""
    rollout = rollout_of(
        snapshot.workers,
        snapshot.spec,
        snapshot.measurements.traffic,
        continues=snapshot.continues_rollout,
    )
    faults = faults_of(
        snapshot.workers,
        snapshot.spec,
        snapshot.measurements,
        snapshot.status,
        now,
        start_timeout=start_timeout(snapshot.spec, snapshot.model),
    )
    # A worker that is to replace another one and that other one are one place.
    decision = _choose(snapshot, tuple(w for w in snapshot.workers if w.uid not in rollout.uids), now)
    surplus = (*decision.assignment.surplus, *rollout.leaving)
    decision = replace(decision, assignment=replace(decision.assignment, surplus=surplus, rollout=rollout))
    least_available = _least_available(decision.assignment, faults)
    context = step_context(snapshot, decision, faults, now)
    actions = () if snapshot.paused else next_actions(context, STEPS)
    status = status_of(snapshot, decision, actions, faults, now, least_available=least_available)
    moves = _moves(snapshot, actions, status)
    requeue_seconds = _requeue_seconds(snapshot, actions, now, moves=moves)
    # What is paused, drains or waits for Pods has a pace of its own.
    usual = requeue_seconds == TUNING.tick_seconds and not moves
    # Gateways that can wake a cluster are asked as often as ever.
    awake = decision.sleep is None
    held = bool(decision.trace.unknown) and awake
    return BalancePlan(
        actions=actions,
        status=status,
        events=events_of(snapshot.status, status),
        requeue_after_seconds=requeue_seconds,
        calm=(decision.trace.calm or held) and awake and usual,
        held=held,
        least_available=least_available,
        target=(decision.proposal or decision).assignment.counts,
        trace=decision.trace,
        scales=decision.scales,
        wanted=decision.wanted,
        observed_only=decision.proposal is not None,
    )


def _choose(snapshot: Snapshot, workers: tuple[ObservedWorker, ...], now: datetime) -> BalanceDecision:
    """Return what each of `workers` is to do."""
    spec, status, measurements = snapshot.spec, snapshot.status, snapshot.measurements
    if spec.balance.mode is BalanceMode.MANUAL:
        return manual(spec, workers)
    sleep = None if spec.balance.idle_after is None else sleep_of(snapshot, workers, now)
    if sleep is not None and sleep.down:
        staying = sleepers(spec, workers)
        surplus = tuple(worker for worker in workers if worker.live and worker not in staying)
        nothing = Assignment(slots=(), surplus=surplus, sleepers=staying)
        return BalanceDecision(assignment=nothing, reasons=Reasons(drain=Reason.FELL_ASLEEP), sleep=sleep)
    wakes = sleep is not None and wakes_from_nothing(status.roles, workers)
    applied = smallest(spec) if wakes else last_applied(spec, workers, status.layout)
    try:
        if spec.balance.mode is BalanceMode.EXTERNAL:
            return follow_scales(spec, workers, status.roles, snapshot.asked, now)
        decision = decide(spec, workers, status, measurements, applied=applied, now=now)
        reasons = replace(decision.reasons, create=Reason.WAKING) if wakes else decision.reasons
        return replace(decision, sleep=sleep, reasons=reasons)
    except Exception as error:  # noqa: BLE001 (a defect in the balance must not keep dead workers from being replaced)
        # Without speeds and load: nothing is left that the performance model could trip over again.
        decision = hold(spec, workers, status.layout, applied=applied, speeds={}, now=now, repair=False)
        return replace(decision, trace=Trace(failure=error, routes=None), sleep=sleep)


def _least_available(assignment: Assignment, faults: Faults) -> int:
    """Return how many ready workers an eviction must leave, so that nodes drain one worker at a time.

    Workers that are wanted and still start count: the next eviction waits for them. Workers that cannot start do not:
    else no node would ever drain. Of several workers the last that serves stays.
    """
    able = sum(slot.worker is None or slot.worker.uid not in faults.unable for slot in assignment.slots)
    return max(able - 1, min(able, 1) if len(assignment.slots) > 1 else 0)


def _requeue_seconds(snapshot: Snapshot, actions: tuple[Action, ...], now: datetime, *, moves: bool) -> float:
    if snapshot.paused:
        return TUNING.resync_seconds
    if any(worker.role is Role.DRAINING and not worker.deleting and not _sleeps(worker) for worker in snapshot.workers):
        return TUNING.drain_poll_seconds
    acts = any(changes_cluster(action) for action in actions)
    if not acts and (waited := _only_waits_since(snapshot.workers)) is not None:
        # The kubelet's news comes as an event; a deadline may be noticed late by a tenth of it.
        waited_seconds = (now - waited).total_seconds()
        return min(max(TUNING.tick_seconds, waited_seconds / 10), TUNING.resync_seconds)
    decides = snapshot.spec.balance.mode is not BalanceMode.MANUAL
    return TUNING.tick_seconds if decides or moves else TUNING.resync_seconds


def _moves(snapshot: Snapshot, actions: tuple[Action, ...], status: InferenceClusterStatus) -> bool:
    """Report whether something is on its way, or may soon be done about a fault."""
    return (
        any(changes_cluster(action) for action in actions)
        or any(condition.reason is Reason.KV_TRANSFER_FAILING for condition in status.conditions)
        or any(adapter.loaded < adapter.workers for adapter in snapshot.measurements.adapters)
        or any(w.stale or w.deleting or not w.ready or not w.role_acknowledged for w in snapshot.workers)
    )


def _sleeps(worker: ObservedWorker) -> bool:
    return worker.load is not None and worker.load.sleep == EngineSleepState.ASLEEP


def _only_waits_since(workers: Iterable[ObservedWorker]) -> datetime | None:
    """Return since when a cluster waits for its Pods to begin and for nothing else; None when it does not."""
    pending = [worker.phase is WorkerPhase.PENDING and worker.live and not worker.stale for worker in workers]
    created = [worker.created for worker in workers if worker.created is not None]
    return max(created) if pending and all(pending) and len(created) == len(pending) else None
