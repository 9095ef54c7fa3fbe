"""The three conditions of an InferenceCluster: each a reason and a message, with transition times carried over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    AdmissionPolicy,
    Condition,
    ConditionStatus,
    ConditionType,
    InferenceClusterSpec,
    InferenceClusterStatus,
)
from fulcrum.balance.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.balance.assign import Assignment
from fulcrum.balance.decision import Decision
from fulcrum.balance.faults import ENGINE_LINES_BYTES, first_bytes, names_of, worker_fault
from fulcrum.balance.kv_tiers import pool_fault, restoring_notes
from fulcrum.balance.rejecting import rejecting
from fulcrum.balance.rollout import halted_message
from fulcrum.balance.snapshot import GatewayState, Snapshot, Worker, served_roles
from fulcrum.balance.target import ratio_text
from fulcrum.balance.transfers import transfer_fault, transfer_faults


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition before it is compared with the one that stands."""

    type: ConditionType
    status: bool
    reason: Reason
    message: str


def timestamp(moment: datetime) -> str:
    """Return `moment` as Kubernetes writes times, whole seconds in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def settle(
    findings: Iterable[Finding], *, status: InferenceClusterStatus, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Turn findings into conditions; the transition time changes only when the status does.

    Conditions of types that are not among the findings stay as they are.
    """
    last = {condition.type: condition for condition in status.conditions}
    settled: dict[ConditionType, Condition] = {}
    for finding in findings:
        before = last.get(finding.type)
        value = ConditionStatus.TRUE if finding.status else ConditionStatus.FALSE
        settled[finding.type] = Condition(
            type=finding.type,
            status=value,
            reason=finding.reason,
            message=finding.message,
            observed_generation=generation,
            last_transition_time=(
                before.last_transition_time if before is not None and before.status is value else timestamp(now)
            ),
        )
    merged = last | settled
    return tuple(merged[kind] for kind in ConditionType if kind in merged)


def available(workers: Iterable[Worker], gateway: GatewayState) -> Finding:
    """Available: a gateway is ready, and every kind of work has a ready worker."""
    kind = ConditionType.AVAILABLE
    served = served_roles(workers)
    missing = [role.value for role in (Role.PREFILL, Role.DECODE) if role not in served]
    # Workers first: a gateway without workers is not ready either, and that would hide the cause.
    if len(missing) == 2:
        return Finding(kind, False, Reason.NO_READY_WORKERS, "No worker is ready.")
    if missing:
        return Finding(kind, False, Reason.ROLE_EMPTY, f"No {missing[0]} worker is ready.")
    if gateway.ready < 1:
        return Finding(kind, False, Reason.GATEWAY_NOT_READY, "No gateway replica is ready.")
    return Finding(kind, True, Reason.READY, "Prefill and decode are served.")


def progressing(
    snapshot: Snapshot, decision: Decision, actions: tuple[Action, ...], halted: frozenset[str], *, least_available: int
) -> Finding:
    """Progressing: the cluster is on its way to what the spec says, or to what the load asks for."""
    finding = _progress(snapshot, decision.assignment, actions, halted)
    reason, notes = _notes(decision)
    notes += restoring_notes(snapshot.workers)
    ready = sum(worker.ready and not worker.deleting for worker in snapshot.workers)
    if finding.status and 0 < ready <= least_available:
        notes.append("No further worker may be evicted until the next one is ready: a node drain waits for it.")
    # A cluster at rest says what else there is to know.
    said = reason if reason is not None and finding.reason is Reason.RECONCILED else finding.reason
    return Finding(finding.type, finding.status, said, " ".join([finding.message, *notes]))


def _progress(
    snapshot: Snapshot, assignment: Assignment, actions: tuple[Action, ...], halted: frozenset[str]
) -> Finding:
    kind = ConditionType.PROGRESSING
    if snapshot.paused:
        return Finding(kind, False, Reason.PAUSED, "Paused by the annotation fulcrum.dev/paused; nothing is changed.")
    flips = [a.name for a in actions if isinstance(a, SetRole)]
    waiting = [w.name for w, role in assignment.kept if w.role is not role]
    if flips or waiting:
        names = names_of(sorted({*flips, *waiting}))
        return Finding(kind, True, Reason.ROLE_FLIPPED, f"Changing the role of {names}.")
    leaving = [a.name for a in actions if isinstance(a, StartDrain | DeleteWorker)]
    leaving += [w.name for w in (*assignment.surplus, *assignment.ended)]
    if leaving:
        names = names_of(sorted(set(leaving)))
        return Finding(kind, True, Reason.WORKER_DRAINING, f"Removing {names}.")
    missing = [s for s in assignment.slots if s.worker is None or not s.worker.ready]
    if halted and not missing:
        message = halted_message(sorted(halted), cluster=snapshot.name, generation=snapshot.generation)
        return Finding(kind, False, Reason.ROLLOUT_HALTED, message)
    if missing or assignment.surge.coming or any(isinstance(a, CreateWorker) for a in actions):
        total = len(assignment.slots)
        ready = f"{total - len(missing)} of {total} workers are ready."
        return Finding(kind, True, Reason.WORKERS_STARTING, ready)
    return Finding(kind, False, Reason.RECONCILED, "The cluster is as its spec says.")


def _notes(decision: Decision) -> tuple[Reason | None, list[str]]:
    """Return what is to be said about the balance beside its progress; without figures, which never stand still."""
    trace = decision.trace
    if trace.failure is not None:
        return Reason.PLAN_FAILED, [_plan_failed(trace.failure)]
    if trace.unknown is not None:
        return Reason.METRICS_UNKNOWN, [f"The balance holds what stands, because its input is unknown: {trace.unknown}"]
    reason, notes = None, []
    if decision.proposal is not None:
        reason = Reason.OBSERVING
        notes.append(f"Mode Observe changes nothing. Auto would {_proposal(decision, decision.proposal)}.")
    if trace.unreachable:
        notes.append(
            "Even an idle worker is slower than spec.slo for requests of this length; the balance plans for the "
            "nearest promise that one keeps. Widen spec.slo.ttft or spec.slo.tpot, or use faster workers."
        )
    return reason, notes


def _plan_failed(error: Exception) -> str:
    said = first_bytes(f"{type(error).__name__}: {error}", ENGINE_LINES_BYTES)
    return (
        f"The balance could not be decided ({said}). What stands is held, and dead workers are replaced. This is a "
        "defect of Fulcrum: please report it with the operator's log; balance.mode: Manual goes on without it."
    )


def _proposal(decision: Decision, proposal: Decision) -> str:
    return (
        "change nothing"
        if proposal.assignment.counts == decision.assignment.counts
        else f"go to {ratio_text(proposal.assignment.counts)}"
    )


def degraded(snapshot: Snapshot, decision: Decision, halted: frozenset[str], now: datetime) -> Finding:
    """Degraded: something needs a human; the message says which Pod, what it said, and what to do."""
    reason, message = _worst(snapshot, decision, halted, now) or (Reason.HEALTHY, "No worker reports a fault.")
    return Finding(ConditionType.DEGRADED, reason is not Reason.HEALTHY, reason, message)


def _worst(snapshot: Snapshot, decision: Decision, halted: frozenset[str], now: datetime) -> tuple[Reason, str] | None:
    if snapshot.refused:
        said = (f"No worker of pool {pool} is made: {why.message}" for pool, why in snapshot.refused.items())
        return next(iter(snapshot.refused.values())).reason, " ".join(said)
    spec, workers, known = snapshot.spec, snapshot.workers, snapshot.measurements
    fault = (
        worker_fault(workers, spec, now)
        or transfer_fault(transfer_faults(workers, known.pairs, snapshot.status, now))
        or pool_fault(spec, workers)
    )
    if fault is not None:
        return fault
    if decision.trace.failure is not None:
        return Reason.PLAN_FAILED, _plan_failed(decision.trace.failure)
    if halted:
        message = halted_message(sorted(halted), cluster=snapshot.name, generation=snapshot.generation)
        return Reason.ROLLOUT_HALTED, message
    rejected = rejecting(known.traffic, spec, workers, snapshot.status)
    if decision.trace.over_capacity:
        return Reason.OVER_CAPACITY, _over_capacity(spec, rejected)
    return None if rejected is None else (Reason.REQUESTS_REJECTED, rejected)


def _over_capacity(spec: InferenceClusterSpec, rejected: str | None) -> str:
    most = sum(pool.workers.max for pool in spec.pools)
    said = f"More arrives than all {most} workers can serve within spec.slo."
    if rejected is not None:
        return f"{said} {rejected}"
    pools = ", ".join(f"{pool.name} ({pool.workers.max})" for pool in spec.pools)
    shed = ", or turn requests away with spec.admission" if spec.admission.policy is AdmissionPolicy.OFF else ""
    return f"{said} Raise workers.max of a pool: {pools}; or widen spec.slo{shed}."
