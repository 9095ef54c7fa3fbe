"""Keeps every needed role served in every state between here and the end of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fulcrum.api.names import Role
from fulcrum.balance.snapshot import Worker, roles_served, served_roles


class RoleGuard:
    """Admits changes of workers one after another.

    The actions of a plan complete in any order, and some may fail, so a worker under change counts only for what it
    serves both before and after. A role that no worker serves now cannot be lost, and a role that the target does not
    have needs no guard.
    """

    def __init__(self, workers: Iterable[Worker], needed: frozenset[Role]) -> None:
        known = tuple(workers)
        self._guarded = served_roles(known) & needed
        self._sure = {worker.uid: worker.serves for worker in known}
        self._counts = Counter(role for sure in self._sure.values() for role in sure)

    def allow(self, worker: Worker, role: Role) -> bool:
        """Admit the change of `worker` to `role` (`DRAINING` also stands for deletion) unless it empties a role."""
        if self.lost(worker, role):
            return False
        left = worker.serves & roles_served(role)
        self._counts.subtract(self._sure[worker.uid] - left)
        self._sure[worker.uid] = left
        return True

    def lost(self, worker: Worker, role: Role) -> frozenset[Role]:
        """Return the roles that no worker would be sure to serve after the change."""
        sure = self._sure[worker.uid]
        leaving = (worker.serves - roles_served(role)) & self._guarded
        return frozenset(kind for kind in leaving if self._counts[kind] <= (kind in sure))
