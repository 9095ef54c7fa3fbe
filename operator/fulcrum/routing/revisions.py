"""Workers sorted by revision, role and pool. Rebuilt when a worker changes, read for every request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.routing.pools import PoolRule
from fulcrum.routing.worker import WorkerView


class PoolGroup(PoolRule):
    """Workers of one pool in one role."""

    def __init__(self, pool: str, workers: list[WorkerView], admits: PoolAdmits | None, names: Sequence[str]) -> None:
        super().__init__(admits, max(worker.kv_capacity for worker in workers), names)
        self.pool = pool
        self.workers = workers
        self.members = frozenset(workers)
        self.by_node: dict[str, list[WorkerView]] = {}
        for worker in workers:
            if worker.node:
                self.by_node.setdefault(worker.node, []).append(worker)


class RevisionGroup:
    """Workers of one revision: only these understand each other's KV."""

    def __init__(self, revision: str, by_role: Mapping[Role, tuple[PoolGroup, ...]]) -> None:
        self.revision = revision
        self.prefill = by_role.get(Role.PREFILL, ())
        self.decode = by_role.get(Role.DECODE, ())
        self.mixed = by_role.get(Role.MIXED, ())
        self.pools = (*self.prefill, *self.decode, *self.mixed)


def by_revision(
    workers: Iterable[WorkerView], admits: Mapping[str, PoolAdmits], class_names: Sequence[str]
) -> tuple[RevisionGroup, ...]:
    """Sort the `workers` that are in a role."""
    found: dict[str, dict[Role, dict[str, list[WorkerView]]]] = {}
    for worker in workers:
        if worker.role is not Role.DRAINING:
            roles = found.setdefault(worker.revision, {})
            roles.setdefault(worker.role, {}).setdefault(worker.pool, []).append(worker)
    return tuple(
        RevisionGroup(
            revision,
            {
                role: tuple(PoolGroup(pool, members, admits.get(pool), class_names) for pool, members in pools.items())
                for role, pools in roles.items()
            },
        )
        for revision, roles in found.items()
    )
