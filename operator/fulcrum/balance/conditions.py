"""The three conditions of an InferenceCluster: each a reason and a message, with transition times carried over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

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
from fulcrum.balance.faults import names_of, pool_fault, pool_maxima, shortened, worker_fault
from fulcrum.balance.rejecting import rejecting
from fulcrum.balance.snapshot import GatewayState, Snapshot, Worker, served_roles
from fulcrum.balance.target import ratio_text
from fulcrum.balance.transfers import TransferFaults, transfer_fault


class Finding(NamedTuple):
    """One condition before it is compared with the one that stands."""

    status: bool
    reason: Reason
    message: str


PAUSED: Final = Finding(False, Reason.PAUSED, "Paused by the annotation fulcrum.dev/paused; nothing is changed.")
HEALTHY: Final = Finding(False, Reason.HEALTHY, "No worker reports a fault.")


def timestamp(moment: datetime) -> str:
    """Return `moment` as Kubernetes writes times, whole seconds in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_findings(
    status: InferenceClusterStatus,
    findings: Mapping[ConditionType, Finding],
    *,
    last: InferenceClusterStatus,
    generation: int,
    now: datetime,
) -> InferenceClusterStatus:
    """Return `status` with the findings as conditions; the others stay.

    The time of a transition is that of the `last` status, unless the finding differs from it.
    """
    before = {condition.type: condition for condition in last.conditions}
    conditions = {condition.type: condition for condition in status.conditions}
    for kind, finding in findings.items():
        value, stood = ConditionStatus.TRUE if finding.status else ConditionStatus.FALSE, before.get(kind)
        conditions[kind] = Condition(
            type=kind,
            status=value,
            reason=finding.reason,
            message=finding.message,
            observed_generation=generation,
            last_transition_time=(
                stood.last_transition_time if stood is not None and stood.status is value else timestamp(now)
            ),
        )
    settled = tuple(conditions[kind] for kind in ConditionType if kind in conditions)
    return replace(status, conditions=settled, observed_generation=generation)


def findings_of(
    snapshot: Snapshot,
    decision: Decision,
    actions: tuple[Action, ...],
    now: datetime,
    *,
    transfers: TransferFaults,
    least_available: int,
) -> dict[ConditionType, Finding]:
    """Return what all three conditions say of a plan."""
    halted = ""
    if decision.assignment.rollout.halted:
        halted = _rollout_halted(decision.assignment.rollout.halted, snapshot.name, snapshot.generation)
    degraded = _worst(snapshot, decision, transfers, now, halted=halted)
    return {
        ConditionType.AVAILABLE: _available(snapshot.workers, snapshot.gateway),
        ConditionType.PROGRESSING: _progressing(
            snapshot.workers,
            decision,
            PAUSED if snapshot.paused else _progress(snapshot.workers, decision.assignment, actions, halted=halted),
            least_available=least_available,
        ),
        ConditionType.DEGRADED: Finding(True, *degraded) if degraded is not None else HEALTHY,
    }


def _available(workers: Iterable[Worker], gateway: GatewayState) -> Finding:
    """Say whether a gateway is ready, and every kind of work has a ready worker."""
    served = served_roles(workers)
    missing = [role.value for role in (Role.PREFILL, Role.DECODE) if role not in served]
    # Workers first: a gateway without workers is not ready either, and that would hide the cause.
    if len(missing) == 2:
        return Finding(False, Reason.NO_READY_WORKERS, "No worker is ready.")
    if missing:
        return Finding(False, Reason.ROLE_EMPTY, f"No {missing[0]} worker is ready.")
    if gateway.ready < 1:
        return Finding(False, Reason.GATEWAY_NOT_READY, "No gateway replica is ready.")
    return Finding(True, Reason.READY, "Prefill and decode are served.")


def _progressing(workers: Iterable[Worker], decision: Decision, finding: Finding, *, least_available: int) -> Finding:
    """Add to what moves what else there is to know of the balance; without figures, which never stand still."""
    workers, trace, said, notes = tuple(workers), decision.trace, None, []
    if trace.failure is not None:
        said, notes = Reason.PLAN_FAILED, [_plan_failed(trace.failure)]
    elif trace.unknown is not None:
        said = Reason.METRICS_UNKNOWN
        notes = [f"The balance holds what stands, because its input is unknown: {trace.unknown}"]
    else:
        if decision.proposal is not None:
            said, proposed = Reason.OBSERVING, decision.proposal.assignment.counts
            change = "change nothing" if proposed == decision.assignment.counts else f"go to {ratio_text(proposed)}"
            notes.append(f"Mode Observe changes nothing. Auto would {change}.")
        if trace.unreachable:
            notes.append(
                "Even an idle worker is slower than spec.slo for requests of this length; the balance plans for the "
                "nearest promise that one keeps. Widen spec.slo.ttft or spec.slo.tpot, or use faster workers."
            )
    tiers = [worker.load.offload for worker in workers if worker.load is not None and worker.load.offload is not None]
    reasons = {tier.reason for tier in tiers if tier.reason is not None}
    notes += [f"KV comes back by policy load: {reason}." for reason in sorted(reasons)]
    ready = sum(worker.ready and not worker.deleting for worker in workers)
    if finding.status and 0 < ready <= least_available:
        notes.append("No further worker may be evicted until the next one is ready: a node drain waits for it.")
    # A cluster at rest gives the reason of the notes, one that moves its own.
    reason = said if said is not None and finding.reason is Reason.RECONCILED else finding.reason
    return Finding(finding.status, reason, " ".join([finding.message, *notes]))


def _progress(
    workers: Iterable[Worker], assignment: Assignment, actions: tuple[Action, ...], *, halted: str
) -> Finding:
    """Say what moves on the way to what the spec says, or to what the load asks for."""
    flips = {a.name for a in actions if isinstance(a, SetRole)}
    flips |= {worker.name for worker, role in assignment.kept if worker.role is not role}
    if flips:
        return Finding(True, Reason.ROLE_FLIPPED, f"Changing the role of {names_of(sorted(flips))}.")
    leaving = {a.name for a in actions if isinstance(a, StartDrain | DeleteWorker)}
    leaving |= {w.name for w in (*assignment.surplus, *(w for w in workers if w.ended))}
    if leaving:
        return Finding(True, Reason.WORKER_DRAINING, f"Removing {names_of(sorted(leaving))}.")
    total = len(assignment.slots)
    ready = sum(slot.worker is not None and slot.worker.ready for slot in assignment.slots)
    if halted and ready == total:
        return Finding(False, Reason.ROLLOUT_HALTED, halted)
    if ready < total or assignment.rollout.coming or any(isinstance(a, CreateWorker) for a in actions):
        return Finding(True, Reason.WORKERS_STARTING, f"{ready} of {total} workers are ready.")
    return Finding(False, Reason.RECONCILED, "The cluster is as its spec says.")


def _worst(
    snapshot: Snapshot, decision: Decision, transfers: TransferFaults, now: datetime, *, halted: str
) -> tuple[Reason, str] | None:
    """Return what most needs a human: which Pod, what it said, and what to do; None while nothing does."""
    if snapshot.refused:
        said = (f"No worker of pool {pool} is made: {why.message}" for pool, why in snapshot.refused.items())
        return next(iter(snapshot.refused.values())).reason, " ".join(said)
    spec, workers = snapshot.spec, snapshot.workers
    fault = worker_fault(workers, spec, now) or transfer_fault(transfers) or pool_fault(workers, spec)
    if fault is not None:
        return fault
    if decision.trace.failure is not None:
        return Reason.PLAN_FAILED, _plan_failed(decision.trace.failure)
    if halted:
        return Reason.ROLLOUT_HALTED, halted
    rejected = rejecting(snapshot.measurements.traffic, spec, workers, snapshot.status)
    if decision.trace.over_capacity:
        return Reason.OVER_CAPACITY, _over_capacity(spec, rejected)
    return None if rejected is None else (Reason.REQUESTS_REJECTED, rejected)


def _over_capacity(spec: InferenceClusterSpec, rejected: str | None) -> str:
    most = sum(pool.workers.max for pool in spec.pools)
    said = f"More arrives than all {most} workers can serve within spec.slo."
    if rejected is not None:
        return f"{said} {rejected}"
    shed = ", or turn requests away with spec.admission" if spec.admission.policy is AdmissionPolicy.OFF else ""
    return f"{said} Raise workers.max of a pool: {pool_maxima(spec)}; or widen spec.slo{shed}."


def _plan_failed(error: Exception) -> str:
    said = shortened(f"{type(error).__name__}: {error}")
    return (
        f"The balance could not be decided ({said}). What stands is held, and dead workers are replaced. This is a "
        "defect of Fulcrum: please report it with the operator's log; balance.mode: Manual goes on without it."
    )


def _rollout_halted(pools: Iterable[str], cluster: str, generation: int) -> str:
    return (
        f"The rollout of pool {', '.join(sorted(pools))} is halted: fewer requests are inside the SLO than "
        "slo.attainment promises while workers of the new revision serve. It goes on by itself when the promise is "
        "kept again. Else correct the spec (going back is never halted), or go on as it is: kubectl annotate ic "
        f"{cluster} fulcrum.dev/continue-rollout={generation} --overwrite"
    )
