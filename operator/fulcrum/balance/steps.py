"""The steps of a plan, each a small decision: what to do next towards the assignment, and nothing that is unsafe.

Every step reads the same `Turn` and yields actions; a worker gets at most one action per plan. The order of the steps
in `STEPS` is the order of their claims on the guard, not the order in which actions are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import FlipStyle
from fulcrum.balance.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain, TellRole
from fulcrum.balance.assignment import Assignment, Slot, name_of
from fulcrum.balance.choice import Reasons
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.snapshot import Snapshot, Worker, WorkerPhase, roles_served
from fulcrum.balance.target import Target

DRAIN_SETTLE: Final = timedelta(seconds=2)
"""Gateways see a new label within 100 ms; before that an idle worker may still be given a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Input of every step."""

    now: datetime
    snapshot: Snapshot
    target: Target
    assignment: Assignment
    revisions: dict[str, str]
    """Wanted worker revision per pool."""
    drain_timeout: timedelta
    guard: RoleGuard
    touched: set[str]
    """Names of workers that have an action already."""
    reasons: Reasons
    """Why the target asks for flips, new workers and drains."""

    def stale(self, worker: Worker) -> bool:
        """Report whether the worker was made from another spec."""
        return worker.spec_hash != self.revisions.get(worker.pool)


def remove_ended(turn: Turn) -> Iterator[Action]:
    """A Pod that is over (evicted, for example) only takes up its name."""
    for worker in turn.assignment.ended:
        yield DeleteWorker(name=worker.name, uid=worker.uid, reason=Reason.WORKER_REPLACED)


def finish_drains(turn: Turn) -> Iterator[Action]:
    """A drained worker is deleted when it has no place any more, or a stale revision; otherwise it gets its role."""
    surplus = [(worker, None) for worker in turn.assignment.surplus]
    for worker, role in (*surplus, *turn.assignment.kept):
        if worker.role is not Role.DRAINING:
            continue
        going = role is None or turn.stale(worker)
        immediate = turn.snapshot.spec.balance.flip.style is FlipStyle.IMMEDIATE
        if going or not immediate:
            if worker.draining_since is None:
                # Somebody else wrote the label: start the clock.
                yield _drain(turn, worker)
                continue
            reason = _drain_end(turn, worker, turn.now - worker.draining_since)
            if reason is None:
                continue
        else:
            reason = Reason.ROLE_FLIPPED
        if going or role is None:
            yield DeleteWorker(name=worker.name, uid=worker.uid, reason=reason)
        else:
            yield _flip(worker, role, Reason.ROLE_FLIPPED if reason is Reason.WORKER_DRAINED else reason)


def _drain_end(turn: Turn, worker: Worker, drained_for: timedelta) -> Reason | None:
    """Return why the drain is over; None while it is not. Unknown load is not idle."""
    if worker.phase is not WorkerPhase.RUNNING or worker.waiting_reason is not None:
        return Reason.WORKER_DRAINED  # no process, nothing to wait for
    if drained_for >= turn.drain_timeout:
        return Reason.DRAIN_TIMED_OUT
    idle = worker.load is not None and worker.load.idle
    return Reason.WORKER_DRAINED if idle and drained_for >= DRAIN_SETTLE else None


def replace_stale(turn: Turn) -> Iterator[Action]:
    """Replace workers of an older revision: those that serve nobody at once, the others one at a time."""
    stale = [worker for worker, _ in turn.assignment.kept if turn.stale(worker)]
    for worker in stale:
        if not worker.ready and worker.role is not Role.DRAINING:
            yield DeleteWorker(name=worker.name, uid=worker.uid, reason=Reason.WORKER_REPLACED)
    candidates = [worker for worker in stale if worker.serving]
    if not candidates or _rollout_busy(turn):
        return
    candidates = [worker for worker in candidates if not _pool_unsettled(turn, worker.pool)]
    for worker in candidates:
        if turn.guard.allow(worker, Role.DRAINING):
            yield _drain(turn, worker)
            return
    if not candidates:
        return
    cover = [worker for worker, _ in turn.assignment.kept if worker.serving and worker is not candidates[0]]
    if cover:
        # Every engine can do both: another worker takes the role over while this one is away.
        helper = min(cover, key=lambda worker: (turn.stale(worker), worker.pool, worker.ordinal))
        if helper.role is not Role.MIXED:
            yield _flip(helper, Role.MIXED, Reason.WORKER_REPLACED)
    elif len(turn.assignment.slots) == 1:
        yield _drain(turn, candidates[0])


def flip_roles(turn: Turn) -> Iterator[Action]:
    """Change roles towards the assignment; a flip that would leave a role empty waits for the others."""
    blocked: list[tuple[Worker, Role]] = []
    moved = False
    for worker, role in turn.assignment.kept:
        if worker.role in (role, Role.DRAINING) or worker.name in turn.touched:
            continue
        drains = turn.snapshot.spec.balance.flip.style is FlipStyle.DRAIN and _changes_sides(worker, role)
        if not turn.guard.allow(worker, Role.DRAINING if drains else role):
            blocked.append((worker, role))
            continue
        moved = True
        reason = turn.reasons.flip
        if drains:
            why = Reason.WORKER_DRAINING if reason is Reason.ROLE_FLIPPED else reason
            yield _drain(turn, worker, why, turn.reasons.load)
        else:
            yield _flip(worker, role, reason, turn.reasons.load)
    if blocked and not moved:
        yield from _break_cycle(turn, blocked)


def _break_cycle(turn: Turn, blocked: list[tuple[Worker, Role]]) -> Iterator[Action]:
    """Two workers that wait for each other: one takes both roles for a moment."""
    for worker, role in blocked:
        lost = turn.guard.lost(worker, role)
        coming = any(
            roles_served(slot.role) & lost and (slot.worker is None or not slot.worker.serving)
            for slot in turn.assignment.slots
        )
        if lost and not coming and worker.role is not Role.MIXED:
            yield _flip(worker, Role.MIXED, turn.reasons.flip, turn.reasons.load)
            return


def drain_surplus(turn: Turn) -> Iterator[Action]:
    """A worker without a place is drained first; one that serves nobody goes at once (SIGTERM still drains it)."""
    for worker in turn.assignment.surplus:
        if worker.role is Role.DRAINING:
            continue
        if not worker.ready:
            yield DeleteWorker(name=worker.name, uid=worker.uid, reason=Reason.WORKER_REMOVED)
        elif turn.guard.allow(worker, Role.DRAINING):
            yield _drain(turn, worker, turn.reasons.drain)


def create_missing(turn: Turn) -> Iterator[Action]:
    """Create workers, but only into room that is free already: a worker on its way out still has its GPUs."""
    occupied = {worker.name for worker in turn.snapshot.workers}
    room = {pool: wanted - len(turn.snapshot.in_pool(pool)) for pool, wanted in turn.target.workers.items()}
    for slot in turn.assignment.slots:
        name = name_of(turn.snapshot, slot)
        if slot.worker is None and room[slot.pool] > 0 and name not in occupied:
            room[slot.pool] -= 1
            yield CreateWorker(
                name=name, pool=slot.pool, ordinal=slot.ordinal, role=slot.role, reason=turn.reasons.create
            )


def tell_roles(turn: Turn) -> Iterator[Action]:
    """Repeat the role to an agent that reports an older epoch."""
    for worker in turn.snapshot.workers:
        behind = worker.load is not None and worker.load.role_epoch < worker.role_epoch
        if behind and worker.pod_ip is not None and not worker.deleting:
            yield TellRole(
                name=worker.name, uid=worker.uid, pod_ip=worker.pod_ip, role=worker.role, epoch=worker.role_epoch
            )


Step = Callable[[Turn], Iterator[Action]]

STEPS: tuple[Step, ...] = (
    remove_ended,
    finish_drains,
    replace_stale,
    flip_roles,
    drain_surplus,
    create_missing,
    tell_roles,
)


def _rollout_busy(turn: Turn) -> bool:
    """Report whether some worker is away already: replacement is one at a time over the whole cluster."""
    return any(_away(slot) for slot in turn.assignment.slots) or any(
        worker.deleting for worker in turn.snapshot.workers
    )


def _away(slot: Slot) -> bool:
    return slot.worker is None or slot.worker.role is Role.DRAINING


def _pool_unsettled(turn: Turn, pool: str) -> bool:
    """Report whether a replacement in the pool is not ready yet; then the next one would make it worse."""
    return any(
        worker.pool == pool and not worker.ready and not turn.stale(worker) for worker, _ in turn.assignment.kept
    )


def _changes_sides(worker: Worker, role: Role) -> bool:
    """Report whether requests of the old role cannot be requests of the new one (no part of it is shared)."""
    return bool(worker.serves) and not worker.serves & roles_served(role)


def _flip(worker: Worker, role: Role, reason: Reason, load: str = "") -> SetRole:
    return SetRole(
        name=worker.name,
        uid=worker.uid,
        from_role=worker.role,
        role=role,
        epoch=worker.role_epoch + 1,
        reason=reason,
        load=load,
    )


def _drain(turn: Turn, worker: Worker, reason: Reason = Reason.WORKER_DRAINING, load: str = "") -> StartDrain:
    return StartDrain(
        name=worker.name,
        uid=worker.uid,
        from_role=worker.role,
        epoch=worker.role_epoch + 1,
        since=turn.now,
        reason=reason,
        load=load,
    )
