"""How many workers of each pool have which role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fulcrum.api.names import Role
from fulcrum.api.types import Pool

PoolCounts = tuple[tuple[str, int], ...]
"""(pool, workers), by pool name, without zeros: equal layouts are equal values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Workers by role and pool."""

    prefill: PoolCounts = ()
    decode: PoolCounts = ()
    mixed: PoolCounts = ()

    @classmethod
    def of(
        cls,
        *,
        prefill: Mapping[str, int] | None = None,
        decode: Mapping[str, int] | None = None,
        mixed: Mapping[str, int] | None = None,
    ) -> Layout:
        """Return the layout of counts per pool."""
        return cls(_counts(prefill), _counts(decode), _counts(mixed))

    def count(self, role: Role) -> int:
        """Return the workers of a role over all pools."""
        return sum(workers for _, workers in self.of_role(role))

    def of_role(self, role: Role) -> PoolCounts:
        """Return the workers of a role, pool by pool."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}.get(role, ())

    def in_pool(self, pool: str) -> dict[Role, int]:
        """Return the workers of a pool by role, roles with none left out."""
        return {
            role: workers
            for role in (Role.PREFILL, Role.DECODE, Role.MIXED)
            for name, workers in self.of_role(role)
            if name == pool
        }

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools that have workers."""
        return frozenset(name for name, _ in (*self.prefill, *self.decode, *self.mixed))

    @property
    def total(self) -> int:
        """Workers in all."""
        return sum(self.count(role) for role in (Role.PREFILL, Role.DECODE, Role.MIXED))

    @property
    def complete(self) -> bool:
        """Requests can be prefilled and decoded."""
        return bool(self.mixed) or bool(self.prefill and self.decode)


def _counts(counts: Mapping[str, int] | None) -> PoolCounts:
    return tuple(sorted((pool, workers) for pool, workers in (counts or {}).items() if workers > 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many workers a pool may have, and in which role."""

    name: str
    role: Role | None
    """The only role of its workers; None: they flip between prefill and decode (or do both)."""
    low: int
    high: int
    gpus: int = 1
    """GPUs of one worker: what it costs."""
    mixes: bool = True
    """Flippable workers may also do both."""

    def as_mixed(self) -> Room:
        """Return the pool with its flippable workers doing both, where they may."""
        if self.role is not None or not self.mixes:
            return self
        return Room(name=self.name, role=Role.MIXED, low=self.low, high=self.high, gpus=self.gpus)


def room_of(pool: Pool, *, low: int, high: int) -> Room:
    """Return the room of a pool between two bounds."""
    gpus = pool.parallelism.tensor * pool.parallelism.pipeline
    mixes = Role.MIXED in pool.roles
    return Room(name=pool.name, role=only_role(pool), low=low, high=high, gpus=gpus, mixes=mixes)


def only_role(pool: Pool) -> Role | None:
    """Return the only role a pool may take; None when it may both prefill and decode, and hence flip."""
    if {Role.PREFILL, Role.DECODE} <= set(pool.roles):
        return None
    return next(role for role in (Role.MIXED, Role.PREFILL, Role.DECODE) if role in pool.roles)
