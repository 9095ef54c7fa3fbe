"""Workers sorted for choosing: by revision, role and pool. Rebuilt when a worker changes, read for every request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.routing.worker import WorkerView

_UNBOUNDED: Final = float("inf")
_PROMPT_ERROR: Final = 0.8
"""Prompt lengths may be estimates: one is too long only when it is so even at this share."""


class PoolRule:
    """Which requests a pool takes, now or later."""

    __slots__ = ("classes", "longest_tokens", "min_prompt_tokens")

    def __init__(self, admits: PoolAdmits | None, kv_capacity_tokens: float, class_names: Sequence[str]) -> None:
        """`kv_capacity_tokens` of its largest worker, 0 while unknown."""
        self.min_prompt_tokens = 0.0
        self.longest_tokens = kv_capacity_tokens / _PROMPT_ERROR if kv_capacity_tokens else _UNBOUNDED
        """The longest prompt that it takes, and that its KV cache may hold."""
        self.classes: frozenset[int] | None = None
        """Indices of the classes that it takes; None: all."""
        if admits is not None:
            self.min_prompt_tokens = float(admits.min_prompt_tokens or 0)
            if admits.max_prompt_tokens is not None:
                self.longest_tokens = min(self.longest_tokens, float(admits.max_prompt_tokens))
            if admits.classes:
                self.classes = frozenset(index for index, name in enumerate(class_names) if name in admits.classes)

    def admits(self, prompt_tokens: float, qos: int) -> bool:
        """Whether it takes a request, by its `admits` and by the size of its KV cache."""
        return self.min_prompt_tokens <= prompt_tokens <= self.longest_tokens and (
            self.classes is None or qos in self.classes
        )


class Group(PoolRule):
    """Workers of one pool in one role."""

    __slots__ = ("by_node", "members", "pool", "workers")

    def __init__(self, pool: str, workers: list[WorkerView], admits: PoolAdmits | None, names: Sequence[str]) -> None:
        super().__init__(admits, max(worker.kv_capacity for worker in workers), names)
        self.pool = pool
        self.workers = workers
        self.members = frozenset(workers)
        self.by_node: dict[str, list[WorkerView]] = {}
        for worker in workers:
            if worker.node:
                self.by_node.setdefault(worker.node, []).append(worker)


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
