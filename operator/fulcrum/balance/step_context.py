"""What every step of a plan reads, and the two actions that several of them make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from fulcrum.api.gateway import PairsReport
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.balance.actions import SetRole, StartDrain
from fulcrum.balance.assign import Assignment
from fulcrum.balance.decision import Reasons
from fulcrum.balance.guard import RoleGuard
from fulcrum.balance.snapshot import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Input of every step."""

    now: datetime
    cluster: str
    """Name of the InferenceCluster."""
    spec: InferenceClusterSpec
    workers: tuple[Worker, ...]
    status: InferenceClusterStatus
    """As it stands."""
    pairs: tuple[PairsReport, ...]
    """What the canaries of each gateway found."""
    taken_names: frozenset[str]
    """Names that no worker of this cluster can have."""
    assignment: Assignment
    halted: frozenset[str]
    """Pools whose rollout waits."""
    drain_timeout: timedelta
    guard: RoleGuard
    touched: set[str]
    """Names of workers that have an action already."""
    reasons: Reasons
    """Why the target asks for flips, new workers and drains."""


def flip(worker: Worker, role: Role, reason: Reason, load: str = "") -> SetRole:
    """Return the change of a role, with the next epoch."""
    return SetRole(
        name=worker.name,
        uid=worker.uid,
        from_role=worker.role,
        role=role,
        epoch=worker.role_epoch + 1,
        reason=reason,
        load=load,
    )


def drain(
    context: StepContext,
    worker: Worker,
    reason: Reason = Reason.WORKER_DRAINING,
    load: str = "",
    *,
    restart: bool = False,
) -> StartDrain:
    """Return the start of a drain, with the next epoch."""
    return StartDrain(
        name=worker.name,
        uid=worker.uid,
        from_role=worker.role,
        epoch=worker.role_epoch + 1,
        since=context.now,
        reason=reason,
        load=load,
        restart=restart,
    )
