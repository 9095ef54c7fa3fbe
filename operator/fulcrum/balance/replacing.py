"""The steps that make workers anew: workers of an older revision, and workers that no KV can be moved to or from."""

from __future__ import annotations

from collections.abc import Iterator

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Pool
from fulcrum.balance.actions import Action, DeleteWorker
from fulcrum.balance.assign import Slot
from fulcrum.balance.rollout import next_to_replace, unavailable_limit
from fulcrum.balance.snapshot import Worker
from fulcrum.balance.step_context import StepContext, drain, flip
from fulcrum.balance.transfers import may_restart, transfer_faults


def replace_stale(context: StepContext) -> Iterator[Action]:
    """Replace workers of an older revision: not-ready ones at once, the others a few at a time per pool."""
    for worker, _ in context.assignment.kept:
        if worker.stale and not worker.ready and worker.role is not Role.DRAINING:
            yield DeleteWorker(name=worker.name, uid=worker.uid, reason=Reason.WORKER_REPLACED)
    blocked: list[Worker] = []
    for pool in context.spec.pools:
        if pool.name not in context.halted:
            yield from _replace_in(context, pool, blocked)
    if blocked and not _rollout_busy(context):
        yield from _cover(context, blocked[0])


def _replace_in(context: StepContext, pool: Pool, blocked: list[Worker]) -> Iterator[Action]:
    """Drain stale workers of one pool as far as its rollout allows; `blocked` gets workers that a role depends on."""
    slots = [slot for slot in context.assignment.slots if slot.pool == pool.name]
    serving = [slot.worker for slot in slots if slot.worker is not None and slot.worker.serving]
    allowed = unavailable_limit(pool, len(slots)) - (len(slots) - len(serving))
    awaited = {worker.replaces for worker in context.assignment.surge.coming}
    candidates = next_to_replace((w for w in serving if w.stale and w.uid not in awaited), serving)
    for worker in candidates if allowed > 0 else ():
        if context.guard.allow(worker, Role.DRAINING):
            yield drain(context, worker)
            allowed -= 1
            if allowed == 0:
                return
        else:
            blocked.append(worker)


def restart_cut_off(context: StepContext) -> Iterator[Action]:
    """Make a worker anew that cannot move KV to or from any peer: one at a time, with ever longer pauses."""
    faults = transfer_faults(context.workers, context.pairs, context.status, context.now)
    if not faults.culprits or _rollout_busy(context):
        return
    kept = {worker.uid for worker, _ in context.assignment.kept}
    due = [
        worker
        for worker in faults.culprits
        if worker.uid in kept and not worker.stale and may_restart(worker, context.status, context.now)
    ]
    for worker in due:
        if context.guard.allow(worker, Role.DRAINING):
            yield drain(context, worker, Reason.KV_TRANSFER_FAILING, restart=True)
            return
    if due:
        yield from _cover(context, due[0], Reason.KV_TRANSFER_FAILING)


def _cover(context: StepContext, blocked: Worker, reason: Reason = Reason.WORKER_REPLACED) -> Iterator[Action]:
    """Let another worker take the role over while `blocked` is away: every engine can do both."""
    cover = [worker for worker, _ in context.assignment.kept if worker.serving and worker is not blocked]
    if cover:
        helper = min(cover, key=lambda worker: (worker.stale, worker.pool, worker.ordinal))
        if helper.role is not Role.MIXED:
            yield flip(helper, Role.MIXED, reason)
    elif len(context.assignment.slots) == 1:
        fault = reason is Reason.KV_TRANSFER_FAILING
        yield drain(context, blocked, reason if fault else Reason.WORKER_DRAINING, restart=fault)


def _rollout_busy(context: StepContext) -> bool:
    """Report whether some worker is away already: replacement is one at a time over the whole cluster."""
    return any(map(_away, context.assignment.slots)) or any(worker.deleting for worker in context.workers)


def _away(slot: Slot) -> bool:
    return slot.worker is None or slot.worker.role is Role.DRAINING
