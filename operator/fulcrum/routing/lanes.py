"""Workers sorted for choosing: by revision, role and pool. Rebuilt when a worker changes, read for every request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.routing.worker import WorkerView

_UNBOUNDED: Final = float("inf")


class Group:
    """Workers of one pool in one role, and which requests the pool takes."""

    __slots__ = (
        "by_node",
        "classes",
        "kv_capacity",
        "max_prompt_tokens",
        "members",
        "min_prompt_tokens",
        "pool",
        "workers",
    )

    def __init__(self, pool: str, workers: list[WorkerView], admits: PoolAdmits | None, names: Sequence[str]) -> None:
        self.pool = pool
        self.workers = workers
        self.members = frozenset(workers)
        self.by_node: dict[str, list[WorkerView]] = {}
        for worker in workers:
            if worker.node:
                self.by_node.setdefault(worker.node, []).append(worker)
        self.kv_capacity = max(worker.kv_capacity for worker in workers)
        self.min_prompt_tokens: float = 0
        self.max_prompt_tokens: float = _UNBOUNDED
        self.classes: frozenset[int] | None = None
        """Indices of the classes that it takes; None: all."""
        if admits is not None:
            self.min_prompt_tokens = admits.min_prompt_tokens or 0
            self.max_prompt_tokens = _UNBOUNDED if admits.max_prompt_tokens is None else admits.max_prompt_tokens
            if admits.classes:
                self.classes = frozenset(index for index, name in enumerate(names) if name in admits.classes)


class Lane:
    """Workers of one revision: only these understand each other's KV."""

    __slots__ = ("decode", "groups", "mixed", "prefill", "revision", "suspect")

    def __init__(self, revision: str, groups: Mapping[Role, tuple[Group, ...]], *, suspect: bool) -> None:
        self.revision = revision
        self.prefill = groups.get(Role.PREFILL, ())
        self.decode = groups.get(Role.DECODE, ())
        self.mixed = groups.get(Role.MIXED, ())
        self.groups = (*self.prefill, *self.decode, *self.mixed)
        self.suspect = suspect


def make_lanes(
    workers: Iterable[WorkerView],
    admits: Mapping[str, PoolAdmits],
    class_names: Sequence[str],
    *,
    suspect: bool = False,
) -> tuple[Lane, ...]:
    """Lanes of the `workers` that are in a role, by revision."""
    sorted_in: dict[str, dict[Role, dict[str, list[WorkerView]]]] = {}
    for worker in workers:
        if worker.role is not Role.DRAINING:
            roles = sorted_in.setdefault(worker.revision, {})
            roles.setdefault(worker.role, {}).setdefault(worker.pool, []).append(worker)
    return tuple(
        Lane(
            revision,
            {
                role: tuple(Group(pool, members, admits.get(pool), class_names) for pool, members in pools.items())
                for role, pools in roles.items()
            },
            suspect=suspect,
        )
        for revision, roles in sorted_in.items()
    )
