"""What a plan says: the status of its InferenceCluster, and events about changes of its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

from fulcrum.api.messages import shortened
from fulcrum.api.names import PORT_GATEWAY, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.status import timestamp
from fulcrum.api.types import (
    ConditionType,
    Decision,
    IdleDepth,
    InferenceClusterStatus,
    KvCacheStatus,
    RehearsalStatus,
    RoleCounts,
)
from fulcrum.capacity.start_timeout import start_timeout
from fulcrum.decide.assign import layout_of
from fulcrum.decide.decision import BalanceDecision
from fulcrum.decide.snapshot import ObservedWorker, Snapshot
from fulcrum.decide.target import ratio_text
from fulcrum.performance.layout import ROLES
from fulcrum.report.conditions import Finding, with_conditions, with_findings
from fulcrum.report.layouts import layout_texts, target_layout
from fulcrum.report.slow_workers import slow_workers
from fulcrum.rollout.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.rollout.faults import Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """An event about the cluster's state; events about actions are made from the actions."""

    reason: Reason
    message: str
    warning: bool
    subject: str
    """What makes the event one of its kind: the same subject gives the same event."""


def status_of(
    snapshot: Snapshot,
    decision: BalanceDecision,
    actions: tuple[Action, ...],
    faults: Faults,
    now: datetime,
    *,
    least_available: int,
) -> InferenceClusterStatus:
    """Return the status that a plan leads to."""
    before, workers, slots = snapshot.status, snapshot.workers, decision.assignment.slots
    address, drift, recommendation = snapshot.gateway.cluster_ip, snapshot.measurements.drift, before.recommendation
    if drift is not None:
        recommendation = drift.recommendation
    elif recommendation is not None and recommendation.generation != snapshot.generation:
        recommendation = None  # it was about other pools
    paces = snapshot.measurements.paces
    status = InferenceClusterStatus(
        endpoint=f"http://{address}:{PORT_GATEWAY}" if address else None,
        ratio=ratio_text(_counts(w for w in workers if w.serving)),
        ready=f"{sum(slot.worker is not None and slot.worker.ready for slot in slots)}/{len(slots)}",
        roles=_role_counts(workers, decision.assignment.counts),
        layout={pool: Counter(slot.role for slot in places) for pool, places in decision.assignment.places.items()}
        or None,
        last_decision=(
            _carried_out(workers, decision, actions, now)
            or _proposed(before.last_decision, decision, now)
            or before.last_decision
        ),
        routes=(before.routes if decision.trace.routes is None else decision.trace.routes) or None,
        rehearsal=_rehearsal(snapshot),
        recommendation=recommendation,
        kv_cache=_kv_cache(snapshot),
        start_timeout=start_timeout(snapshot.spec, snapshot.model),
        preload=snapshot.preload,
        failed_gpus=faults.failed_gpus or None,
        sleep=decision.sleep,
        slow_workers=slow_workers(snapshot.spec.pools, workers, paces, before.slow_workers or (), now) or None,
    )
    return with_conditions(status, snapshot, decision, actions, faults, now=now, least_available=least_available)


def _rehearsal(snapshot: Snapshot) -> RehearsalStatus | None:
    rehearsed = snapshot.measurements.rehearsed
    if rehearsed is None:
        return snapshot.status.rehearsal if snapshot.measurements.rehearses else None
    stood, best, checked = rehearsed.compared[0], rehearsed.compared[-1], rehearsed.checked
    stood_text, best_text, chosen_text = layout_texts(stood.layout, best.layout, rehearsed.chosen)
    return RehearsalStatus(
        time=timestamp(rehearsed.time),
        stood=stood_text,
        stood_attainment=round(stood.inside, 3),
        best=best_text,
        best_attainment=round(best.inside, 3),
        chosen=chosen_text,
        requests=rehearsed.requests,
        gain=round(rehearsed.gain, 1),
        error=round(rehearsed.error, 1) if isfinite(rehearsed.error) and len(rehearsed.compared) > 1 else None,
        off=round(rehearsed.off, 3) or None,
        foretold_attainment=round(checked.foretold, 3) if checked is not None else None,
        served_attainment=round(checked.served, 3) if checked is not None else None,
    )


def _kv_cache(snapshot: Snapshot) -> KvCacheStatus | None:
    if (chosen := snapshot.kv_dtype) is None:
        return snapshot.status.kv_cache
    why = "; ".join(each for each in (chosen.why, snapshot.model_note) if each)
    return KvCacheStatus(dtype=chosen.dtype.value, reason=shortened(why))


def _counts(workers: Iterable[ObservedWorker]) -> Counter[Role]:
    return Counter(worker.role for worker in workers)


def _role_counts(workers: Sequence[ObservedWorker], desired: Mapping[Role, int]) -> dict[Role, RoleCounts]:
    ready = _counts(w for w in workers if w.serving)
    draining = Counter(w.draining_from for w in workers if w.role is Role.DRAINING and not w.deleting)
    return {
        role: RoleCounts(desired=desired.get(role, 0), ready=ready[role], draining=draining[role])
        for role in ROLES
        if desired.get(role, 0) or ready[role] or draining[role]
    }


def _carried_out(
    workers: Iterable[ObservedWorker], decision: BalanceDecision, actions: tuple[Action, ...], now: datetime
) -> Decision | None:
    """Summarise a plan in one line; flips first, because they are what an operator on call looks for."""
    for kind, verb in ((SetRole, "Flip"), (StartDrain, "Drain"), (DeleteWorker, "Delete"), (CreateWorker, "Create")):
        chosen = [action for action in actions if isinstance(action, kind)]
        if chosen:
            have, want = layout_texts(layout_of(w for w in workers if w.live), target_layout(decision.assignment))
            return Decision(
                action=f"{verb} {', '.join(action.name for action in chosen[:4])}{' ...' if chosen[4:] else ''}",
                reason=chosen[0].reason,
                from_=have,
                to=want,
                time=timestamp(now),
                explanation=decision.trace.explanation if chosen[0].reason is decision.trace.reason else None,
            )
    return None


def _proposed(last: Decision | None, decision: BalanceDecision, now: datetime) -> Decision | None:
    """Return what mode Auto would do; what was said last, with its time, while it is still the same."""
    if decision.proposal is None:
        return None
    stands, proposed = target_layout(decision.assignment), target_layout(decision.proposal.assignment)
    if proposed == stands:
        return None
    have, want = layout_texts(stands, proposed)
    trace = decision.proposal.trace
    action, reason = f"Observed only: Auto would go from {have} to {want}", trace.reason or Reason.OBSERVING
    if last is not None and (last.action, last.reason) == (action, reason):
        return last
    return Decision(
        action=action, reason=reason, from_=have, to=want, time=timestamp(now), explanation=trace.explanation
    )


def events_of(last: InferenceClusterStatus, status: InferenceClusterStatus) -> tuple[PlanEvent, ...]:
    """Return the events of a change from one status to the next: a fault, GPUs that failed or are slow, other pools."""
    events = [*_failed_gpu_events(last, status), *_slow_worker_events(last, status), *_sleep_events(last, status)]
    fault, stood = status.fault, last.fault
    # A GPU that failed has its own event, and so has each adapter.
    own = (Reason.GPU_FAILED, Reason.ADAPTER_NOT_LOADED)
    told = fault is None or fault.reason in own or (stood is not None and stood.reason is fault.reason)
    if fault is not None and not told:
        since = fault.last_transition_time
        events.append(PlanEvent(reason=fault.reason, message=fault.message, warning=True, subject=since))
    found, before = status.recommendation, last.recommendation
    if found is not None and (before is None or before.since != found.since):
        pools = ", ".join(f"{pool.workers} {pool.role.value} of {pool.gpus} {pool.accelerator}" for pool in found.pools)
        message = (
            f"For requests of {found.input_tokens:.0f} + {found.output_tokens:.0f} tokens other pools on the same GPUs "
            f"would carry {found.gain:.0%} more within spec.slo: {pools}. Nothing is changed by itself: see "
            "status.recommendation, and change spec.pools."
        )
        events.append(PlanEvent(reason=Reason.PLACEMENT_DRIFTED, message=message, warning=False, subject=found.since))
    return tuple(events)


def _failed_gpu_events(last: InferenceClusterStatus, status: InferenceClusterStatus) -> Iterator[PlanEvent]:
    told = {(gpu.node, gpu.gpu, gpu.time) for gpu in last.failed_gpus or ()}
    for gpu in status.failed_gpus or ():
        if (gpu.node, gpu.gpu, gpu.time) not in told:
            which = f"GPU {gpu.gpu}" if gpu.gpu else "A GPU"
            message = f"{which} of node {gpu.node} failed under {gpu.worker} ({gpu.fault}). New workers avoid the node."
            subject = f"{gpu.node}/{gpu.gpu}/{gpu.time}"
            yield PlanEvent(reason=Reason.GPU_FAILED, message=message, warning=True, subject=subject)


def _slow_worker_events(last: InferenceClusterStatus, status: InferenceClusterStatus) -> Iterator[PlanEvent]:
    told = {(slow.worker, slow.node, slow.since) for slow in last.slow_workers or ()}
    for slow in status.slow_workers or ():
        if (slow.worker, slow.node, slow.since) not in told:
            message = (
                f"Worker {slow.worker} on node {slow.node} takes {slow.factor:g} times as long as the others of pool "
                f"{slow.pool} for the same work. Look at clocks, temperature, power limit and links of its GPUs."
            )
            subject = f"{slow.worker}/{slow.node}/{slow.since}"
            yield PlanEvent(reason=Reason.WORKER_SLOW, message=message, warning=True, subject=subject)


def _sleep_events(last: InferenceClusterStatus, status: InferenceClusterStatus) -> Iterator[PlanEvent]:
    """Return the event of falling asleep or of waking."""
    was, sleep = last.sleep, status.sleep
    if sleep is None or was is None or was.down == sleep.down:
        return
    engines = sleep.depth is IdleDepth.ENGINES
    what = "The engines of workers wake" if engines else "Workers start"
    reason, message = Reason.WAKING, f"{what}: a request came, or load is expected."
    if sleep.down:
        what = "engines are put to sleep" if engines else "workers are removed"
        reason = Reason.FELL_ASLEEP
        message = (
            f"No request came for balance.idleAfter: all {what}. The next request is held while they "
            f"{'wake' if engines else 'start'}."
        )
    yield PlanEvent(reason=reason, message=message, warning=False, subject=sleep.since)


def stopped_status(
    reason: Reason,
    message: str,
    *,
    status: InferenceClusterStatus,
    generation: int,
    now: datetime,
    last: InferenceClusterStatus | None = None,
) -> InferenceClusterStatus:
    """Return `status` with what stopped the way to the spec; what runs is left as it is.

    It degrades the cluster, unless a next attempt may do it. `last` is the status that stands, where that is another.
    """
    said = shortened(message)
    findings = {ConditionType.PROGRESSING: Finding(False, reason, said)}
    if reason is not Reason.RECONCILE_FAILED:
        findings[ConditionType.DEGRADED] = Finding(True, reason, said)
    return with_findings(status, findings, last=last or status, generation=generation, now=now)
