"""Which requests each pool takes, and workers by revision, role and pool: rebuilt when a worker changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView


class PoolRule:
    """Which requests a pool takes, now or later."""

    def __init__(self, admits: PoolAdmits | None, kv_capacity_tokens: float, class_names: Sequence[str]) -> None:
        """`kv_capacity_tokens` of its largest worker, 0 while unknown."""
        self.min_prompt_tokens = 0.0
        self.longest_tokens = kv_capacity_tokens / TUNING.estimate_share if kv_capacity_tokens else inf
        """The longest prompt that it takes, and that its KV cache can hold."""
        self.classes: frozenset[int] | None = None
        """Indices of the classes that it takes; None: all."""
        if admits is not None:
            self.min_prompt_tokens = float(admits.min_prompt_tokens or 0)
            if admits.max_prompt_tokens is not None:
                self.longest_tokens = min(self.longest_tokens, float(admits.max_prompt_tokens))
            if admits.classes:
                self.classes = frozenset(index for index, name in enumerate(class_names) if name in admits.classes)

    def takes(self, prompt_tokens: float, qos: int) -> bool:
        """Whether the pool takes a request."""
        return self.min_prompt_tokens <= prompt_tokens <= self.longest_tokens and (
            self.classes is None or qos in self.classes
        )


class PoolGroup(PoolRule):
    """Workers of one pool in one role."""

    def __init__(self, pool: str, workers: list[WorkerView], admits: PoolAdmits | None, names: Sequence[str]) -> None:
        super().__init__(admits, max(worker.engine.kv_capacity for worker in workers), names)
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
    workers: Iterable[WorkerView], admits: Mapping[str, PoolAdmits | None], class_names: Sequence[str]
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
