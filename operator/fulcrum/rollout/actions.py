"""What a plan can ask for. Every action is idempotent and carries its reason."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWorker:
    """Make a worker Pod; one that already exists is left alone."""

    name: str
    pool: str
    ordinal: int
    role: Role
    reason: Reason = Reason.WORKER_CREATED
    replaces: str | None = None
    """Uid of the worker whose place it takes once it is ready; None: its place is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRole:
    """Flip a live worker: label and epoch in one write."""

    name: str
    uid: str
    from_role: Role
    role: Role
    epoch: int
    reason: Reason = Reason.ROLE_FLIPPED
    load: str = ""
    """The load that it was decided for, for people; empty where no load was the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDrain:
    """Take a worker out of every role; it finishes what it has."""

    name: str
    uid: str
    from_role: Role
    epoch: int
    reason: Reason = Reason.WORKER_DRAINING
    restart: bool = False
    """It is made anew when it has drained."""
    load: str = ""
    """As of `SetRole`, where it drains to change its role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorker:
    """Delete a worker Pod."""

    name: str
    uid: str
    reason: Reason
    force: bool = False
    """Without waiting for a node that will never answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRole:
    """Tell the agent of a worker its role, because it still reports an older epoch."""

    name: str
    uid: str
    role: Role
    epoch: int
    reason: Reason = Reason.ROLE_FLIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSleep:
    """Have an agent put its engine to sleep, or wake it up."""

    name: str
    uid: str
    epoch: int
    level: int
    """vLLM's level of sleep; 0: wake up."""
    reason: Reason


Action = CreateWorker | SetRole | StartDrain | DeleteWorker | TellRole | TellSleep


def changes_cluster(action: Action) -> bool:
    """Report whether the action writes to the API server; only such actions are decisions with an event."""
    return not isinstance(action, TellRole | TellSleep)
