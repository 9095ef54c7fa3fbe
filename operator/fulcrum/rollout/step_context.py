"""What every step of a plan reads, how the steps are run, and the actions that several of them make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.assign import Assignment, Slot
from fulcrum.decide.decision import BalanceDecision, Reasons
from fulcrum.decide.snapshot import ObservedWorker, Refusal, Snapshot, roles_served, served_roles
from fulcrum.rollout.actions import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.rollout.faults import Faults


class RoleGuard:
    """Admits changes of workers one after another.

    The actions of a plan complete in any order, and some may fail, so a worker under change counts only for what it
    serves both before and after. A role that no worker serves now cannot be lost, and a role that the target does not
    have needs no guard.
    """

    def __init__(self, workers: Iterable[ObservedWorker], needed: frozenset[Role]) -> None:
        known = tuple(workers)
        self._guarded = served_roles(known) & needed
        self._sure = {worker.uid: worker.serves for worker in known}
        self._counts = Counter(role for sure in self._sure.values() for role in sure)

    def allow(self, worker: ObservedWorker, role: Role) -> bool:
        """Admit the change of `worker` to `role` (`DRAINING` also stands for deletion) unless it empties a role."""
        if self.lost(worker, role):
            return False
        left = worker.serves & roles_served(role)
        self._counts.subtract(self._sure[worker.uid] - left)
        self._sure[worker.uid] = left
        return True

    def lost(self, worker: ObservedWorker, role: Role) -> frozenset[Role]:
        """Return the roles that no worker would be sure to serve after the change."""
        sure = self._sure[worker.uid]
        leaving = (worker.serves - roles_served(role)) & self._guarded
        return frozenset(kind for kind in leaving if self._counts[kind] <= (kind in sure))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Input of every step."""

    now: datetime
    cluster: str
    spec: InferenceClusterSpec
    workers: tuple[ObservedWorker, ...]
    taken_names: frozenset[str]
    """Names of Pods that are not of this cluster."""
    refused: Mapping[str, Refusal]
    """Pools whose workers may not be made."""
    faults: Faults
    assignment: Assignment
    reasons: Reasons
    """Why the target asks for flips, new workers and drains."""
    guard: RoleGuard
    touched: set[str]
    """Names of workers that have an action already."""

    def places(self, pool: str) -> Sequence[Slot]:
        """Return the places of a pool in the target."""
        return self.assignment.places.get(pool, ())


def step_context(snapshot: Snapshot, decision: BalanceDecision, faults: Faults, now: datetime) -> StepContext:
    """Return what the steps read, before the first of them."""
    return StepContext(
        now=now,
        cluster=snapshot.name,
        spec=snapshot.spec,
        workers=snapshot.workers,
        taken_names=snapshot.taken_names,
        refused=snapshot.refused,
        faults=faults,
        assignment=decision.assignment,
        reasons=decision.reasons,
        guard=RoleGuard(snapshot.workers, decision.assignment.needed),
        touched=set(),
    )


Step = Callable[[StepContext], Iterator[Action]]


def next_actions(context: StepContext, steps: Iterable[Step]) -> tuple[Action, ...]:
    """Return what the steps do now: at most one action for each worker, that of the first step which has one."""
    actions: list[Action] = []
    for step in steps:
        for action in step(context):
            refused = isinstance(action, CreateWorker) and action.pool in context.refused
            if action.name not in context.touched and not refused:
                context.touched.add(action.name)
                actions.append(action)
    return tuple(actions)


def flip(worker: ObservedWorker, role: Role, reason: Reason, load: str = "") -> SetRole:
    """Return the change of a role, with the next epoch."""
    name, uid, epoch = worker.name, worker.uid, worker.role_epoch + 1
    return SetRole(name=name, uid=uid, from_role=worker.role, role=role, epoch=epoch, reason=reason, load=load)


def drain(
    worker: ObservedWorker,
    reason: Reason = Reason.WORKER_DRAINING,
    load: str = "",
    *,
    restart: bool = False,
) -> StartDrain:
    """Return the start of a drain, with the next epoch."""
    name, uid, was, epoch = worker.name, worker.uid, worker.role, worker.role_epoch + 1
    return StartDrain(name=name, uid=uid, from_role=was, epoch=epoch, reason=reason, load=load, restart=restart)


def delete(worker: ObservedWorker, reason: Reason, *, force: bool = False) -> DeleteWorker:
    """Return the end of a worker."""
    return DeleteWorker(name=worker.name, uid=worker.uid, reason=reason, force=force)
