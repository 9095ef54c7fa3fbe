"""The three conditions of an InferenceCluster: each a reason and a message, with transition times carried over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from fulcrum.api.messages import names_of, shortened
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.status import timestamp
from fulcrum.api.types import (
    Condition,
    ConditionStatus,
    ConditionType,
    InferenceClusterStatus,
    PreloadState,
    RehearsalStatus,
    SleepState,
    SleepStatus,
)
from fulcrum.api.worker import EngineSleepState
from fulcrum.decide.assign import Assignment
from fulcrum.decide.decision import BalanceDecision
from fulcrum.decide.snapshot import GatewayState, ObservedWorker, Snapshot, roles_served
from fulcrum.decide.tuning import TUNING
from fulcrum.report.layouts import layout_texts, target_layout
from fulcrum.report.rehearsal_off import rehearsal_off
from fulcrum.report.slow_transfers import slow_transfers
from fulcrum.report.unserved import adapters_missing, batches_missing, requests_rejected
from fulcrum.rollout.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.rollout.faults import Faults


class Finding(NamedTuple):
    """One condition before it is compared with the one that stands."""

    status: bool
    reason: Reason
    message: str


PAUSED: Final = Finding(False, Reason.PAUSED, "Paused by the annotation fulcrum.dev/paused; nothing is changed.")
HEALTHY: Final = Finding(False, Reason.HEALTHY, "No worker reports a fault.")


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


def with_conditions(
    status: InferenceClusterStatus,
    snapshot: Snapshot,
    decision: BalanceDecision,
    actions: tuple[Action, ...],
    faults: Faults,
    *,
    now: datetime,
    least_available: int,
) -> InferenceClusterStatus:
    """Return the status of a plan with what all three conditions say of it."""
    halted = ""
    if decision.assignment.rollout.halted:
        halted = _rollout_halted(decision.assignment.rollout.halted, snapshot.name, snapshot.generation)
    ready = {role: counts.ready for role, counts in status.roles.items() if counts.ready}
    degraded = _worst(snapshot, decision, faults, now, halted=halted, serving=sum(ready.values()))
    moving = _progress(snapshot.workers, decision.assignment, actions, halted=halted)
    if moving.reason is Reason.RECONCILED and snapshot.gateway.rolling:
        moving = Finding(True, Reason.GATEWAY_STARTING, "Gateways are being replaced or started.")
    findings = {
        ConditionType.AVAILABLE: _available(ready, snapshot.gateway, decision.sleep),
        ConditionType.PROGRESSING: _progressing(
            snapshot,
            decision,
            PAUSED if snapshot.paused else moving,
            played=status.rehearsal,
            least_available=least_available,
        ),
        ConditionType.DEGRADED: Finding(True, *degraded) if degraded is not None else HEALTHY,
    }
    return with_findings(status, findings, last=snapshot.status, generation=snapshot.generation, now=now)


def _available(roles: Iterable[Role], gateway: GatewayState, sleep: SleepStatus | None) -> Finding:
    """Say whether a gateway is ready, and every kind of work has a worker; `roles` are those of workers that serve.

    A cluster that sleeps is available: the next request is held while workers start.
    """
    if sleep is not None and sleep.down and gateway.ready >= 1:
        return Finding(True, Reason.ASLEEP, "No worker is to serve. The next request is held while workers start.")
    served = frozenset[Role]().union(*map(roles_served, roles))
    missing = [role.value for role in (Role.PREFILL, Role.DECODE) if role not in served]
    # Workers first: a gateway without workers is not ready either, and that would hide the cause.
    if len(missing) == 2:
        return Finding(False, Reason.NO_READY_WORKERS, "No worker is ready.")
    if missing:
        return Finding(False, Reason.ROLE_EMPTY, f"No {missing[0]} worker is ready.")
    if gateway.ready < 1:
        why = f" {gateway.stuck}" if gateway.stuck is not None else ""
        return Finding(False, Reason.GATEWAY_NOT_READY, f"No gateway replica is ready.{why}")
    return Finding(True, Reason.READY, "Prefill and decode are served.")


def _progressing(
    snapshot: Snapshot,
    decision: BalanceDecision,
    finding: Finding,
    *,
    played: RehearsalStatus | None,
    least_available: int,
) -> Finding:
    """Add to what moves what else there is to know of the balance; without figures, which never stand still."""
    workers, trace, said, notes = snapshot.workers, decision.trace, None, []
    if trace.failure is not None:
        said, notes = Reason.PLAN_FAILED, [_plan_failed(trace.failure)]
    elif trace.unknown is not None:
        said = Reason.METRICS_UNKNOWN
        notes = [f"The balance holds what stands, because its input is unknown: {trace.unknown}"]
    else:
        if decision.proposal is not None:
            said, stands = Reason.OBSERVING, target_layout(decision.assignment)
            proposed = target_layout(decision.proposal.assignment)
            change = "change nothing" if proposed == stands else f"go to {layout_texts(stands, proposed)[1]}"
            notes.append(f"Mode Observe changes nothing. Auto would {change}.")
        if trace.unreachable:
            notes.append(
                "Even an idle worker is slower than spec.slo for requests of this length; the balance plans for the "
                "nearest promise that one keeps, and keeps its size while admission turns all of them away. Widen "
                "spec.slo.ttft or spec.slo.tpot, or use faster workers."
            )
    if snapshot.measurements.plays_distrusted:
        said = said or Reason.REHEARSAL_OFF
        notes.append(rehearsal_off(rehearses=snapshot.measurements.rehearses, played=played))
    tiers = [worker.load.offload for worker in workers if worker.load is not None and worker.load.offload is not None]
    reasons = {tier.reason for tier in tiers if tier.reason is not None}
    notes += [f"KV comes back by policy load: {reason}." for reason in sorted(reasons)]
    if any(worker.load is not None and worker.load.flips_restart for worker in workers):
        notes.append("Flips start engines again: this vLLM gives each engine one side of KV transfers.")
    if on_nodes := [pool.name for pool in snapshot.spec.pools if pool.on_host_network and pool.workers.max > 0]:
        notes.append(f"NetworkPolicies do not hold for pool {names_of(on_nodes)}, because of rdma.hostNetwork.")
    if waits := {why.message for why in snapshot.refused.values() if why.reason is Reason.PRELOADING}:
        said = said or Reason.PRELOADING
        notes += [f"Workers wait for the weights: {each}" for each in waits]
    if snapshot.scheduling_note:
        notes.append(snapshot.scheduling_note)
    if slow := slow_transfers(snapshot.spec, snapshot.status, snapshot.measurements, workers):
        said = said or Reason.KV_TRANSFER_SLOW
        notes.append(slow)
    ready = sum(worker.ready and not worker.deleting for worker in workers)
    if finding.status and 0 < ready <= least_available:
        notes.append("No further worker may be evicted until the next one is ready: a node drain waits for it.")
    # A cluster at rest gives the reason of the notes, one that moves its own.
    reason = said if said is not None and finding.reason is Reason.RECONCILED else finding.reason
    return Finding(finding.status, reason, " ".join([finding.message, *notes]))


def _progress(
    workers: Iterable[ObservedWorker], assignment: Assignment, actions: tuple[Action, ...], *, halted: str
) -> Finding:
    """Say what moves on the way to what the spec says, or to what the load asks for."""
    flips = {a.name for a in actions if isinstance(a, SetRole)}
    flips |= {worker.name for worker, role in assignment.kept if worker.role is not role}
    if flips:
        return Finding(True, Reason.ROLE_FLIPPED, f"Changing the role of {names_of(sorted(flips))}.")
    dozing = {worker.name for worker in assignment.sleepers}
    awake = {
        w.name
        for w in assignment.sleepers
        if w.role is not Role.DRAINING or (w.load is not None and w.load.sleep != EngineSleepState.ASLEEP)
    }
    if awake:
        return Finding(True, Reason.FELL_ASLEEP, f"Putting the engines of {names_of(sorted(awake))} to sleep.")
    leaving = {a.name for a in actions if isinstance(a, StartDrain | DeleteWorker)} - dozing
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
    snapshot: Snapshot, decision: BalanceDecision, faults: Faults, now: datetime, *, halted: str, serving: int
) -> tuple[Reason, str] | None:
    """Return what most needs a human: which Pod, what it said, and what to do; None while nothing does."""
    refused = {pool: why for pool, why in snapshot.refused.items() if why.reason is not Reason.PRELOADING}
    if refused:
        said = (f"No worker of pool {pool} is made: {why.message}" for pool, why in refused.items())
        return next(iter(refused.values())).reason, " ".join(said)
    if faults.worst is not None:
        return faults.worst
    stopped = _stopped(snapshot, decision, halted) or _unmade(snapshot, decision.sleep, now)
    if stopped is not None:
        return stopped
    rejected = requests_rejected(
        snapshot.spec,
        snapshot.measurements.traffic,
        snapshot.status.fault,
        over_capacity=decision.trace.over_capacity,
        serving=serving,
    )
    return (
        rejected
        or _unsuited(snapshot)
        or adapters_missing(snapshot.measurements.adapters)
        or batches_missing(snapshot.batch_problem)
    )


def _unmade(snapshot: Snapshot, sleep: SleepStatus | None, now: datetime) -> tuple[Reason, str] | None:
    """Return what to say when workers are to start and no Pod of them could be made; None while some are there."""
    if sleep is None or sleep.state != SleepState.WAKING or snapshot.workers or snapshot.paused:
        return None
    if any(why.reason is Reason.PRELOADING for why in snapshot.refused.values()):
        return None
    if (now - datetime.fromisoformat(sleep.since)).total_seconds() < TUNING.unmade_seconds:
        return None
    return Reason.WAKE_FAILED, (
        "Workers are to start and no Pod can be made. The condition Progressing says why; most often a ResourceQuota "
        "is used up: kubectl get resourcequota. Requests wait for gateway.hold.maxWait, and then get 503."
    )


def _unsuited(snapshot: Snapshot) -> tuple[Reason, str] | None:
    """Return which of KV dtype, model config, profiles and preload does not work; None where all do."""
    if snapshot.kv_dtype is not None and snapshot.kv_dtype.problem is not None:
        return Reason.KV_DTYPE_UNSUITED, (
            f"{snapshot.kv_dtype.problem}. spec.engine.kvCache.dtype forces it: set it to auto, which makes new "
            "workers, or serve a checkpoint that brings scales."
        )
    if snapshot.model_problem is not None:
        return Reason.MODEL_CONFIG_UNUSABLE, f"{snapshot.model_problem} Until then Fulcrum reckons without it."
    if snapshot.profile_problems:
        said = " ".join((*snapshot.profile_problems, "Until then the balance reckons without it."))
        return Reason.PROFILE_UNUSABLE, said
    if snapshot.preload is not None and snapshot.preload.state == PreloadState.FAILED:
        return Reason.PRELOAD_FAILED, (
            f"Weights were not downloaded ahead, so workers load them by themselves. {snapshot.preload.message}."
        )
    return None


def _stopped(snapshot: Snapshot, decision: BalanceDecision, halted: str) -> tuple[Reason, str] | None:
    """Return what does not go on by itself."""
    if decision.trace.failure is not None:
        return Reason.PLAN_FAILED, _plan_failed(decision.trace.failure)
    if snapshot.gateway.stuck is not None:
        return Reason.GATEWAY_ROLLOUT_FAILED, f"Gateways cannot be made as the spec says: {snapshot.gateway.stuck}"
    return (Reason.ROLLOUT_HALTED, halted) if halted else None


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
