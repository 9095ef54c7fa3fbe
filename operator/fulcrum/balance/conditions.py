"""The three conditions of an InferenceCluster: each a reason and a message, with transition times carried over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdmissionPolicy, Condition, ConditionStatus, ConditionType, InferenceClusterStatus
from fulcrum.api.worker import EXIT_BAD_CONFIG, EXIT_ENGINE_DIED, EXIT_ENGINE_NOT_STARTED
from fulcrum.balance.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.balance.assignment import Assignment
from fulcrum.balance.choice import Choice
from fulcrum.balance.rejecting import rejecting
from fulcrum.balance.snapshot import Snapshot, Worker, served_roles
from fulcrum.balance.target import ratio_text

ENGINE_LINES_BYTES: Final = 1024
"""How much of the engine's last output a condition repeats."""
NAMED_WORKERS: Final = 8
"""How many workers a message lists by name."""

EXIT_MEANINGS: Final = {
    EXIT_BAD_CONFIG: "its configuration cannot be used",
    EXIT_ENGINE_NOT_STARTED: "vLLM did not come up",
    EXIT_ENGINE_DIED: "vLLM died while serving",
}


@dataclass(frozen=True, slots=True, kw_only=True)
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
    standing = {condition.type: condition for condition in status.conditions}
    settled: dict[ConditionType, Condition] = {}
    for finding in findings:
        before = standing.get(finding.type)
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
    merged = standing | settled
    return tuple(merged[kind] for kind in ConditionType if kind in merged)


def available(snapshot: Snapshot) -> Finding:
    """Available: a gateway is ready, and every kind of work has a ready worker."""
    kind = ConditionType.AVAILABLE
    served = served_roles(snapshot.workers)
    missing = [role.value for role in (Role.PREFILL, Role.DECODE) if role not in served]
    # Workers first: a gateway without workers is not ready either, and that would hide the cause.
    if len(missing) == 2:
        return Finding(type=kind, status=False, reason=Reason.NO_READY_WORKERS, message="No worker is ready.")
    if missing:
        return Finding(type=kind, status=False, reason=Reason.ROLE_EMPTY, message=f"No {missing[0]} worker is ready.")
    if snapshot.gateway.ready < 1:
        return Finding(type=kind, status=False, reason=Reason.GATEWAY_NOT_READY, message="No gateway replica is ready.")
    return Finding(type=kind, status=True, reason=Reason.READY, message="Prefill and decode are served.")


def progressing(snapshot: Snapshot, choice: Choice, actions: tuple[Action, ...]) -> Finding:
    """Progressing: the cluster is on its way to what the spec says, or to what the load asks for."""
    finding = _progress(snapshot, choice.assignment, actions)
    reason, notes = _notes(choice)
    return Finding(
        type=finding.type,
        status=finding.status,
        # A cluster at rest says what else there is to know.
        reason=reason if reason is not None and finding.reason is Reason.RECONCILED else finding.reason,
        message=" ".join([finding.message, *notes]),
    )


def _progress(snapshot: Snapshot, assignment: Assignment, actions: tuple[Action, ...]) -> Finding:
    kind = ConditionType.PROGRESSING
    if snapshot.paused:
        return Finding(
            type=kind,
            status=False,
            reason=Reason.PAUSED,
            message="Paused by the annotation fulcrum.dev/paused; nothing is changed.",
        )
    flips = [a.name for a in actions if isinstance(a, SetRole)]
    waiting = [w.name for w, role in assignment.kept if w.role is not role]
    if flips or waiting:
        names = _names(sorted({*flips, *waiting}))
        return Finding(type=kind, status=True, reason=Reason.ROLE_FLIPPED, message=f"Changing the role of {names}.")
    leaving = [a.name for a in actions if isinstance(a, StartDrain | DeleteWorker)]
    leaving += [w.name for w in (*assignment.surplus, *assignment.ended)]
    if leaving:
        names = _names(sorted(set(leaving)))
        return Finding(type=kind, status=True, reason=Reason.WORKER_DRAINING, message=f"Removing {names}.")
    missing = [s for s in assignment.slots if s.worker is None or not s.worker.ready]
    if missing or any(isinstance(a, CreateWorker) for a in actions):
        total = len(assignment.slots)
        return Finding(
            type=kind,
            status=True,
            reason=Reason.WORKERS_STARTING,
            message=f"{total - len(missing)} of {total} workers are ready.",
        )
    return Finding(type=kind, status=False, reason=Reason.RECONCILED, message="The cluster is as its spec says.")


def _notes(choice: Choice) -> tuple[Reason | None, list[str]]:
    """Return what is to be said about the balance beside its progress; without figures, which never stand still."""
    insight = choice.insight
    if insight.unknown is not None:
        return Reason.METRICS_UNKNOWN, [
            f"The balance holds what stands, because its input is unknown: {insight.unknown}"
        ]
    reason, notes = None, []
    if choice.proposal is not None:
        reason = Reason.OBSERVING
        notes.append(f"Mode Observe changes nothing. Auto would {_proposal(choice, choice.proposal)}.")
    if insight.unreachable:
        notes.append(
            "Even an idle worker is slower than spec.slo for requests of this length; the balance plans for the "
            "nearest promise that one keeps. Widen spec.slo.ttft or spec.slo.tpot, or use faster workers."
        )
    return reason, notes


def _proposal(choice: Choice, proposal: Choice) -> str:
    return (
        "change nothing"
        if proposal.target.counts() == choice.target.counts()
        else f"go to {ratio_text(proposal.target.counts())}"
    )


def degraded(snapshot: Snapshot, choice: Choice) -> Finding:
    """Degraded: something needs a human; the message says which Pod and what it said."""
    kind = ConditionType.DEGRADED
    failed = sorted((w for w in snapshot.workers if w.engine_failed), key=lambda w: w.name)
    if failed:
        return Finding(type=kind, status=True, reason=Reason.ENGINE_FAILED, message=_engine_message(failed))
    homeless = sorted((w for w in snapshot.workers if w.unschedulable and not w.deleting), key=lambda w: w.name)
    if homeless:
        message = f"{_names([w.name for w in homeless])} cannot be scheduled: {homeless[0].unschedulable}"
        return Finding(type=kind, status=True, reason=Reason.WORKER_UNSCHEDULABLE, message=message)
    rejected = rejecting(snapshot)
    if choice.insight.over_capacity:
        message = _over_capacity(snapshot, rejected)
        return Finding(type=kind, status=True, reason=Reason.OVER_CAPACITY, message=message)
    if rejected is not None:
        return Finding(type=kind, status=True, reason=Reason.REQUESTS_REJECTED, message=rejected)
    return Finding(type=kind, status=False, reason=Reason.HEALTHY, message="No worker reports a fault.")


def _over_capacity(snapshot: Snapshot, rejected: str | None) -> str:
    most = sum(pool.workers.max for pool in snapshot.spec.pools)
    said = f"More arrives than all {most} workers can serve within spec.slo."
    if rejected is not None:
        return f"{said} {rejected}"
    pools = ", ".join(f"{pool.name} ({pool.workers.max})" for pool in snapshot.spec.pools)
    shed = (
        ", or turn requests away with spec.admission" if snapshot.spec.admission.policy is AdmissionPolicy.OFF else ""
    )
    return f"{said} Raise workers.max of a pool: {pools}; or widen spec.slo{shed}."


def _engine_message(failed: list[Worker]) -> str:
    first = failed[0]
    others = f" (and {_names([w.name for w in failed[1:]])})" if len(failed) > 1 else ""
    if first.termination is None:
        return f"The engine of Pod {first.name}{others} keeps ending ({first.waiting_reason})."
    code = first.termination.exit_code
    meaning = EXIT_MEANINGS.get(code, "the worker ended")
    lines = last_bytes(first.termination.message.strip(), ENGINE_LINES_BYTES)
    said = f" Last lines:\n{lines}" if lines else ""
    return f"The engine of Pod {first.name}{others} failed: {meaning} (exit code {code}).{said}"


def last_bytes(text: str, limit_bytes: int) -> str:
    """Return the end of `text` in at most `limit_bytes` of UTF-8, starting at a whole line where there is one."""
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    tail = encoded[-limit_bytes:].decode(errors="ignore")
    _, newline, rest = tail.partition("\n")
    return rest if newline and rest else tail


def first_bytes(text: str, limit_bytes: int) -> str:
    """Return the beginning of `text` in at most `limit_bytes` of UTF-8."""
    return text.encode()[:limit_bytes].decode(errors="ignore")


def _names(names: list[str]) -> str:
    listed = ", ".join(names[:NAMED_WORKERS])
    return listed if len(names) <= NAMED_WORKERS else f"{listed} and {len(names) - NAMED_WORKERS} more"
