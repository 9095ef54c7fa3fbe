"""The worker's role: which callers may change it, and when (epochs)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fulcrum.api.names import Role
from fulcrum.api.worker import RoleRequest


class RoleOutcome(StrEnum):
    """What became of a role request."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    STALE = "stale"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole:
    """A role with its epoch, and whether the worker was asked to drain.

    The Pod's label is the truth and the controller repeats itself, so messages may come twice and out of order: the
    epoch decides. A drain that `POST /drain` began ends with the next epoch; one that SIGTERM began never ends.
    """

    role: Role
    epoch: int
    drain_asked: bool = False
    terminating: bool = False

    @property
    def draining(self) -> bool:
        return self.drain_asked or self.terminating or self.role is Role.DRAINING

    def asked_to_drain(self) -> WorkerRole:
        return replace(self, drain_asked=True)

    def asked_to_terminate(self) -> WorkerRole:
        return replace(self, terminating=True)

    def asked(self, request: RoleRequest) -> tuple[WorkerRole, RoleOutcome]:
        """The role after a request: a lower epoch is stale, an equal one must name the same role."""
        if request.role_epoch < self.epoch:
            return self, RoleOutcome.STALE
        if request.role_epoch == self.epoch:
            return self, RoleOutcome.UNCHANGED if request.role is self.role else RoleOutcome.CONFLICT
        return replace(self, role=request.role, epoch=request.role_epoch, drain_asked=False), RoleOutcome.CHANGED
