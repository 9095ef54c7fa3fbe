"""The steps of a plan, each a small decision: what to do next towards the assignment, and nothing that is unsafe.

Every step reads the same `StepContext` and yields actions; a worker gets at most one action per plan. The order of the
steps in `STEPS` is the order of their claims on the guard, not the order in which actions are carried out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta

from fulcrum.api.names import Role, worker_name
from fulcrum.api.reasons import Reason
from fulcrum.api.types import FlipStyle
from fulcrum.decide.pools import flippable
from fulcrum.decide.replacements import surge_limit
from fulcrum.decide.snapshot import ObservedWorker, WorkerPhase, roles_served, served_roles
from fulcrum.decide.tuning import TUNING
from fulcrum.rollout.actions import Action, CreateWorker, TellRole
from fulcrum.rollout.engine_sleep import may_rest, sleep_engines
from fulcrum.rollout.replacing import replace_stale, restart_cut_off, stale_workers
from fulcrum.rollout.step_context import Step, StepContext, delete, drain, flip


def remove_ended(context: StepContext) -> Iterator[Action]:
    """A Pod that is over (evicted, for example), or whose node is gone, only takes up its name and its place."""
    for worker in context.workers:
        if worker.lost:
            yield delete(worker, Reason.NODE_LOST, force=True)
        elif worker.ended:
            yield delete(worker, Reason.WORKER_REPLACED)


def leave_failed_gpus(context: StepContext) -> Iterator[Action]:
    """A worker whose GPU failed gives up its Pod: a container that restarts would stay on the node."""
    for worker in context.workers:
        if worker.uid in context.faults.leaving and worker.pool not in context.refused:
            yield delete(worker, Reason.GPU_FAILED)


def finish_drains(context: StepContext) -> Iterator[Action]:
    """A drained worker is deleted when it has no place any more, or a stale revision; otherwise it gets its role."""
    immediate = context.spec.balance.flip.style is FlipStyle.IMMEDIATE
    surplus = [(worker, None) for worker in context.assignment.surplus]
    for worker, place in (*surplus, *context.assignment.kept):
        if worker.role is not Role.DRAINING:
            continue
        role = None if worker.stale or worker.restart_asked else place
        if role is not None and may_rest(context, worker):
            continue
        if role is not None and immediate:
            yield flip(worker, role, Reason.ROLE_FLIPPED)
        elif worker.draining_since is None:
            yield drain(worker)  # another client wrote the label: start the clock
        elif (reason := _drain_end(context, worker, context.now - worker.draining_since)) is None:
            continue
        elif role is None:
            yield delete(worker, reason)
        else:
            yield flip(worker, role, Reason.ROLE_FLIPPED if reason is Reason.WORKER_DRAINED else reason)


def _drain_end(context: StepContext, worker: ObservedWorker, drained_for: timedelta) -> Reason | None:
    """Return why the drain is over; None while it is not. Unknown load is not idle."""
    if worker.phase is not WorkerPhase.RUNNING or worker.waiting_reason is not None:
        return Reason.WORKER_DRAINED  # no process, nothing to wait for
    if worker.load is not None and worker.load.starting:
        return Reason.WORKER_DRAINED  # the engine died, or stood still and was restarted: its requests are gone
    if drained_for.total_seconds() >= context.spec.drain_timeout_seconds:
        return Reason.DRAIN_TIMED_OUT
    idle = worker.load is not None and worker.load.idle
    # Gateways see a new label within 100 ms; before that an idle worker may still be given a request.
    settled = drained_for.total_seconds() >= TUNING.tick_seconds
    return Reason.WORKER_DRAINED if idle and settled else None


def flip_roles(context: StepContext) -> Iterator[Action]:
    """Change roles towards the assignment; a flip that would leave a role empty waits for the others."""
    blocked: list[tuple[ObservedWorker, Role]] = []
    moved = False
    for worker, role in context.assignment.kept:
        if worker.role in (role, Role.DRAINING) or worker.name in context.touched:
            continue
        # Requests of the old role cannot be requests of the new one.
        apart = bool(worker.serves) and not worker.serves & roles_served(role)
        drains = apart and context.spec.balance.flip.style is FlipStyle.DRAIN
        if not context.guard.allow(worker, Role.DRAINING if drains else role):
            blocked.append((worker, role))
            continue
        moved = True
        reason = context.reasons.flip
        if drains:
            why = Reason.WORKER_DRAINING if reason is Reason.ROLE_FLIPPED else reason
            yield drain(worker, why, context.reasons.load)
        else:
            yield flip(worker, role, reason, context.reasons.load)
    if blocked and not moved:
        yield from _break_cycle(context, blocked)


def cover_empty_role(context: StepContext) -> Iterator[Action]:
    """While the only worker of a role is replaced (evicted, or its node is gone), the last other worker does both."""
    empty = context.assignment.needed - served_roles(context.workers)
    vacant = any(slot.worker is None and roles_served(slot.role) & empty for slot in context.assignment.slots)
    flexible = flippable(context.spec.pools)
    able = [worker for worker, _ in context.assignment.kept if worker.serving and worker.pool in flexible]
    if vacant and able and not any(worker.name in context.touched for worker in able):
        yield flip(able[-1], Role.MIXED, Reason.ROLE_EMPTY)


def _break_cycle(context: StepContext, blocked: list[tuple[ObservedWorker, Role]]) -> Iterator[Action]:
    """Two workers that wait for each other: one takes both roles for a moment."""
    for worker, role in blocked:
        lost = context.guard.lost(worker, role)
        coming = any(
            roles_served(slot.role) & lost and (slot.worker is None or not slot.worker.serving)
            for slot in context.assignment.slots
        )
        if lost and not coming and worker.role is not Role.MIXED:
            yield flip(worker, Role.MIXED, context.reasons.flip, context.reasons.load)
            return


def drain_surplus(context: StepContext) -> Iterator[Action]:
    """A worker without a place is drained first; one that is not ready goes at once (SIGTERM still drains it)."""
    for worker in context.assignment.surplus:
        if worker.role is Role.DRAINING:
            continue
        if not worker.ready:
            yield delete(worker, Reason.WORKER_REMOVED)
        elif context.guard.allow(worker, Role.DRAINING):
            yield drain(worker, context.reasons.drain)


def create_missing(context: StepContext) -> Iterator[Action]:
    """Create workers, but only into room that is free already: a worker on its way out still has its GPUs.

    Beyond the wanted number only as far as the rollout of the pool allows it: for places that become free when a worker
    has ended, then for workers of an older revision.
    """
    names = {*context.taken_names, *(worker.name for worker in context.workers)}

    def has_pod(pool: str, ordinal: int) -> bool:
        return worker_name(context.cluster, pool, ordinal) in names

    for pool in context.spec.pools:
        places = context.places(pool.name)
        room = len(places) + surge_limit(pool, len(places)) - sum(w.pool == pool.name for w in context.workers)
        if room <= 0:
            continue
        missing = [slot for slot in places if slot.worker is None]
        # Places whose own name is free come first: those whose Pod still ends may get it back.
        missing.sort(key=lambda slot: has_pod(slot.pool, slot.ordinal))
        of_worker = {slot.worker.uid: slot for slot in places if slot.worker is not None}
        surging = [of_worker[worker.uid] for worker in stale_workers(context, pool.name)]
        reserved = {slot.ordinal for slot in places}
        free = (n for n in itertools.count() if n not in reserved and not has_pod(pool.name, n))
        for slot in [*missing, *surging][:room]:
            taken = slot.worker is not None or has_pod(slot.pool, slot.ordinal)
            ordinal = next(free) if taken else slot.ordinal
            yield CreateWorker(
                name=worker_name(context.cluster, pool.name, ordinal),
                pool=pool.name,
                ordinal=ordinal,
                role=slot.role,
                reason=context.reasons.create if slot.worker is None else Reason.WORKER_REPLACED,
                replaces=None if slot.worker is None else slot.worker.uid,
            )


def tell_roles(context: StepContext) -> Iterator[Action]:
    """Repeat the role to an agent that reports an older epoch."""
    for worker in context.workers:
        behind = worker.load is not None and worker.load.role_epoch < worker.role_epoch
        if behind and worker.agent is not None and not worker.deleting:
            yield TellRole(name=worker.name, uid=worker.uid, role=worker.role, epoch=worker.role_epoch)


STEPS: tuple[Step, ...] = (
    remove_ended,
    leave_failed_gpus,
    finish_drains,
    replace_stale,
    restart_cut_off,
    flip_roles,
    cover_empty_role,
    drain_surplus,
    create_missing,
    tell_roles,
    sleep_engines,
)
