"""What every step of a plan reads, and the actions that several of them make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance.actions import DeleteWorker, SetRole, StartDrain
from fulcrum.balance.assign import Assignment, Slot
from fulcrum.balance.decision import Reasons
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.snapshot import Worker
from fulcrum.balance.transfers import TransferFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Input of every step."""

    now: datetime
    cluster: str
    spec: InferenceClusterSpec
    workers: tuple[Worker, ...]
    taken_names: frozenset[str]
    """Names of Pods that are not of this cluster."""
    transfers: TransferFaults
    assignment: Assignment
    reasons: Reasons
    """Why the target asks for flips, new workers and drains."""
    guard: RoleGuard
    touched: set[str]
    """Names of workers that have an action already."""

    def places(self, pool: str) -> list[Slot]:
        """Return the places of a pool in the target."""
        return [slot for slot in self.assignment.slots if slot.pool == pool]


def flip(worker: Worker, role: Role, reason: Reason, load: str = "") -> SetRole:
    """Return the change of a role, with the next epoch."""
    name, uid, epoch = worker.name, worker.uid, worker.role_epoch + 1
    return SetRole(name=name, uid=uid, from_role=worker.role, role=role, epoch=epoch, reason=reason, load=load)


def drain(
    worker: Worker, now: datetime, reason: Reason = Reason.WORKER_DRAINING, load: str = "", *, restart: bool = False
) -> StartDrain:
    """Return the start of a drain, with the next epoch."""
    name, uid, was, epoch = worker.name, worker.uid, worker.role, worker.role_epoch + 1
    return StartDrain(
        name=name, uid=uid, from_role=was, epoch=epoch, since=now, reason=reason, load=load, restart=restart
    )


def delete(worker: Worker, reason: Reason, *, force: bool = False) -> DeleteWorker:
    """Return the end of a worker."""
    return DeleteWorker(name=worker.name, uid=worker.uid, reason=reason, force=force)
