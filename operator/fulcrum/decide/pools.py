"""How many workers a pool may have, and in which role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fulcrum.api.names import Role
from fulcrum.api.types import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """How many workers a pool may have, and in which role."""

    name: str
    role: Role | None
    """The only role of its workers; None: they flip between prefill and decode (or do both)."""
    low: int
    high: int
    cost: float = 1.0
    """What one worker costs: its price per hour where the spec sets prices, else its GPUs."""
    mixes: bool = True
    """Flippable workers may also do both."""

    def as_mixed(self) -> PoolBounds:
        """Return the pool with its flippable workers doing both, where they may."""
        if self.role is not None or not self.mixes:
            return self
        return replace(self, role=Role.MIXED)


def bounds_of(pool: Pool, *, low: int, high: int) -> PoolBounds:
    """Return the bounds of a pool."""
    mixes = Role.MIXED in pool.roles
    return PoolBounds(name=pool.name, role=only_role(pool), low=low, high=high, cost=worker_cost(pool), mixes=mixes)


def worker_cost(pool: Pool) -> float:
    """Return what one worker costs: its price per hour, or its GPUs where the spec sets no prices."""
    return pool.parallelism.gpus * (1.0 if pool.price_per_hour is None else pool.price_per_hour)


def flippable(pools: Iterable[Pool]) -> frozenset[str]:
    """Return the names of the pools whose workers flip."""
    return frozenset(pool.name for pool in pools if only_role(pool) is None)


def only_role(pool: Pool) -> Role | None:
    """Return the only role a pool may take; None when it may both prefill and decode, and hence flip."""
    if {Role.PREFILL, Role.DECODE} <= set(pool.roles):
        return None
    return next(role for role in (Role.MIXED, Role.PREFILL, Role.DECODE) if role in pool.roles)
