"""The steps that make workers anew: workers of an older revision, and workers that no KV can be moved to or from."""

from __future__ import annotations

from collections.abc import Iterator

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.decide.replacements import next_to_replace, unavailable_limit
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.rollout.actions import Action
from fulcrum.rollout.step_context import StepContext, delete, drain, flip


def replace_stale(context: StepContext) -> Iterator[Action]:
    """Replace workers of an older revision: those whose engine is not up at once, the others as few as their pool says.

    One that is not ready for now goes before those that serve, and takes no other's turn: it is away already.
    """
    for worker, _ in context.assignment.kept:
        if worker.stale and not worker.ready and not worker.pausing and worker.role is not Role.DRAINING:
            yield delete(worker, Reason.WORKER_REPLACED)
    blocked: list[ObservedWorker] = []
    for pool in context.spec.pools:
        places = context.places(pool.name)
        pausing = sum(slot.worker is not None and slot.worker.pausing for slot in places)
        allowed = unavailable_limit(pool, len(places)) - sum(_is_away(slot.worker) for slot in places)
        for worker in stale_workers(context, pool.name):
            if allowed <= (0 if worker.pausing else pausing):
                break
            if context.guard.allow(worker, Role.DRAINING):
                yield drain(worker)
                allowed -= 1
                pausing -= worker.pausing
            else:
                blocked.append(worker)
    if blocked and not _one_is_away(context):
        yield from _cover(context, blocked[0])


def stale_workers(context: StepContext, pool: str) -> list[ObservedWorker]:
    """Return the workers of a pool that are to be replaced and that no replacement is on its way for, in order."""
    rollout = context.assignment.rollout
    if pool in rollout.halted:
        return []
    workers = [slot.worker for slot in context.places(pool) if slot.worker is not None]
    if not any(worker.stale for worker in workers):
        return []
    going = [w for w in workers if w.stale and w.uid not in rollout.awaited and w.name not in context.touched]
    serving = [worker for worker in workers if worker.serving]
    return [*(w for w in going if w.pausing), *next_to_replace([w for w in going if w.serving], serving)]


def _is_away(worker: ObservedWorker | None) -> bool:
    return worker is None or not (worker.serving or worker.pausing)


def restart_cut_off(context: StepContext) -> Iterator[Action]:
    """Make a worker anew that cannot move KV to or from any peer: one at a time, with ever longer pauses."""
    kept = {worker.uid for worker, _ in context.assignment.kept}
    due = [worker for worker in context.faults.restarts if worker.uid in kept and not worker.stale]
    if not due or _one_is_away(context):
        return
    for worker in due:
        if context.guard.allow(worker, Role.DRAINING):
            yield drain(worker, Reason.KV_TRANSFER_FAILING, restart=True)
            return
    yield from _cover(context, due[0], Reason.KV_TRANSFER_FAILING)


def _cover(context: StepContext, blocked: ObservedWorker, reason: Reason = Reason.WORKER_REPLACED) -> Iterator[Action]:
    """Let another worker take the role over while `blocked` is away: every engine can do both."""
    cover = [worker for worker, _ in context.assignment.kept if worker.serving and worker is not blocked]
    if cover:
        helper = min(cover, key=lambda worker: (worker.stale, worker.pool, worker.ordinal))
        if helper.role is not Role.MIXED:
            yield flip(helper, Role.MIXED, reason)
    elif len(context.assignment.slots) == 1:
        fault = reason is Reason.KV_TRANSFER_FAILING
        yield drain(blocked, reason if fault else Reason.WORKER_DRAINING, restart=fault)


def _one_is_away(context: StepContext) -> bool:
    """Report whether some worker is away already: replacement is one at a time over the whole cluster."""
    return any(worker.deleting for worker in context.workers) or any(
        slot.worker is None or slot.worker.role is Role.DRAINING for slot in context.assignment.slots
    )
