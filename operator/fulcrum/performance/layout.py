"""How many workers of each pool have which role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fulcrum.api.names import Role

ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)
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

    @classmethod
    def of_roles(cls, counts: Mapping[Role, Mapping[str, int]]) -> Layout:
        """Return the layout of counts per role and pool."""
        return cls(*(_counts(counts.get(role)) for role in ROLES))

    def plus(self, changes: Iterable[tuple[str, Role, int]]) -> Layout:
        """Return the layout with that many more workers of each pool and role; a negative number is fewer."""
        counts = {role: dict(self.of_role(role)) for role in ROLES}
        for pool, role, workers in changes:
            counts[role][pool] = counts[role].get(pool, 0) + workers
        return self.of_roles(counts)

    def count(self, role: Role) -> int:
        """Return the workers of a role over all pools."""
        return sum(workers for _, workers in self.of_role(role))

    def counts(self) -> dict[Role, int]:
        """Return the workers by role over all pools, roles with none left out."""
        return {role: workers for role in ROLES if (workers := self.count(role))}

    def of_role(self, role: Role) -> PoolCounts:
        """Return the workers of a role, pool by pool."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}.get(role, ())

    def in_pool(self, pool: str) -> dict[Role, int]:
        """Return the workers of a pool by role, roles with none left out."""
        return {role: workers for role in ROLES for name, workers in self.of_role(role) if name == pool}

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools that have workers."""
        return frozenset(name for name, _ in (*self.prefill, *self.decode, *self.mixed))

    @property
    def total(self) -> int:
        """Workers in all."""
        return sum(self.count(role) for role in ROLES)

    @property
    def complete(self) -> bool:
        """Requests can be prefilled and decoded."""
        return bool(self.mixed) or bool(self.prefill and self.decode)


def _counts(counts: Mapping[str, int] | None) -> PoolCounts:
    return tuple(sorted((pool, workers) for pool, workers in (counts or {}).items() if workers > 0))
