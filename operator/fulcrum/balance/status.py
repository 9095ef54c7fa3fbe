"""What a plan says in the status of its InferenceCluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from fulcrum.api.names import PORT_GATEWAY, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, InferenceClusterStatus, Recommendation, RoleCounts
from fulcrum.api.types import Decision as LastDecision
from fulcrum.balance.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.balance.conditions import Finding, available, degraded, progressing, settle, timestamp
from fulcrum.balance.decision import Decision
from fulcrum.balance.faults import ENGINE_LINES_BYTES, first_bytes
from fulcrum.balance.measurements import Drift
from fulcrum.balance.snapshot import Snapshot, Worker
from fulcrum.balance.target import ratio_text


def status_of(
    snapshot: Snapshot,
    decision: Decision,
    actions: tuple[Action, ...],
    halted: frozenset[str],
    now: datetime,
    *,
    least_available: int,
) -> InferenceClusterStatus:
    """Return the status that a plan leads to."""
    assignment = decision.assignment
    findings = (
        available(snapshot.workers, snapshot.gateway),
        progressing(snapshot, decision, actions, halted, least_available=least_available),
        degraded(snapshot, decision, halted, now),
    )
    ready = sum(1 for slot in assignment.slots if slot.worker is not None and slot.worker.ready)
    address = snapshot.gateway.cluster_ip
    last = _last_decision(snapshot.workers, decision, actions, now)
    if last is None and decision.proposal is not None:
        last = _proposed(snapshot.status.last_decision, decision, decision.proposal, now)
    return InferenceClusterStatus(
        observed_generation=snapshot.generation,
        conditions=settle(findings, status=snapshot.status, generation=snapshot.generation, now=now),
        endpoint=f"http://{address}:{PORT_GATEWAY}" if address else None,
        ratio=ratio_text(_counts(w for w in snapshot.workers if w.serving)),
        ready=f"{ready}/{len(assignment.slots)}",
        roles=_role_counts(snapshot.workers, assignment.counts),
        last_decision=last or snapshot.status.last_decision,
        routes=(snapshot.status.routes if decision.trace.routes is None else decision.trace.routes) or None,
        recommendation=_recommendation(
            snapshot.measurements.drift, snapshot.status.recommendation, snapshot.generation
        ),
    )


def recommendation_text(found: Recommendation) -> str:
    """Return what an event says of a recommendation."""
    pools = ", ".join(
        f"{pool.workers} {pool.role.value} of {pool.tensor * pool.pipeline} {pool.accelerator}" for pool in found.pools
    )
    return (
        f"For requests of {found.input_tokens:.0f} + {found.output_tokens:.0f} tokens other pools on the same GPUs "
        f"would carry {found.gain:.0%} more within spec.slo: {pools}. Nothing is changed by itself: see "
        "status.recommendation, and change spec.pools."
    )


def _recommendation(drift: Drift | None, last: Recommendation | None, generation: int) -> Recommendation | None:
    """Return the newest one; the last one is about the pools of its generation only."""
    if drift is not None:
        return drift.recommendation
    return last if last is not None and last.generation == generation else None


def _counts(workers: Iterable[Worker]) -> Counter[Role]:
    return Counter(worker.role for worker in workers)


def _role_counts(workers: Sequence[Worker], desired: Mapping[Role, int]) -> dict[Role, RoleCounts]:
    ready = _counts(w for w in workers if w.serving)
    draining = Counter(w.draining_from for w in workers if w.role is Role.DRAINING and not w.deleting)
    return {
        role: RoleCounts(desired=desired.get(role, 0), ready=ready[role], draining=draining[role])
        for role in (Role.PREFILL, Role.DECODE, Role.MIXED)
        if desired.get(role, 0) or ready[role] or draining[role]
    }


def _last_decision(
    workers: Iterable[Worker], decision: Decision, actions: tuple[Action, ...], now: datetime
) -> LastDecision | None:
    """Summarise a plan in one line; flips first, because they are what an operator on call looks for."""
    for kind, verb in ((SetRole, "Flip"), (StartDrain, "Drain"), (DeleteWorker, "Delete"), (CreateWorker, "Create")):
        chosen = [action for action in actions if isinstance(action, kind)]
        if chosen:
            return LastDecision(
                action=f"{verb} {', '.join(action.name for action in chosen[:4])}{' ...' if chosen[4:] else ''}",
                reason=chosen[0].reason,
                from_=ratio_text(_counts(w for w in workers if w.live)),
                to=ratio_text(decision.assignment.counts),
                time=timestamp(now),
                explanation=decision.trace.explanation if chosen[0].reason is decision.trace.reason else None,
            )
    return None


def _proposed(
    last_said: LastDecision | None, decision: Decision, proposal: Decision, now: datetime
) -> LastDecision | None:
    """Return what mode Auto would do; what was said last, with its time, while it is still the same."""
    have, want = ratio_text(decision.assignment.counts), ratio_text(proposal.assignment.counts)
    if have == want:
        return None
    last = LastDecision(
        action=f"Observed only: Auto would go from {have} to {want}",
        reason=proposal.trace.reason or Reason.OBSERVING,
        from_=have,
        to=want,
        time=timestamp(now),
        explanation=proposal.trace.explanation,
    )
    same = last_said is not None and (last_said.action, last_said.reason) == (last.action, last.reason)
    return last_said if same else last


def stopped_status(
    reason: Reason, message: str, *, status: InferenceClusterStatus, generation: int, now: datetime
) -> InferenceClusterStatus:
    """Return the status of an object about which nothing can be decided; what runs is left as it is."""
    text = first_bytes(message, ENGINE_LINES_BYTES)
    findings = (
        Finding(ConditionType.PROGRESSING, False, reason, text),
        Finding(ConditionType.DEGRADED, True, reason, text),
    )
    conditions = settle(findings, status=status, generation=generation, now=now)
    return msgspec.structs.replace(status, conditions=conditions, observed_generation=generation)
