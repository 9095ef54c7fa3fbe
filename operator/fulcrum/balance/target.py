"""How many workers each pool has and how many of them take which role: from the spec alone.

`fit` turns a wish (P prefill, D decode) into counts that the pools can have. Which worker takes which role is
`assign`'s part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.balance.pools import only_role
from fulcrum.performance.layout import ROLES, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the spec alone asks for."""

    workers: dict[str, int] = field(default_factory=dict)
    """Workers per pool."""
    fixed: dict[str, Role] = field(default_factory=dict)
    """Role of every worker of a pool that has no choice."""
    flexible_prefill: int = 0
    """Prefill workers among all workers of the pools that are not in `fixed`; the rest of them decode."""

    @property
    def total(self) -> int:
        """Workers in all."""
        return sum(self.workers.values())

    def counts(self) -> dict[Role, int]:
        """Workers per role, roles with none left out."""
        counts = {Role.PREFILL: self.flexible_prefill, Role.DECODE: -self.flexible_prefill, Role.MIXED: 0}
        for pool, workers in self.workers.items():
            counts[self.fixed.get(pool, Role.DECODE)] += workers
        return {role: count for role, count in counts.items() if count > 0}


def layout_of_target(target: Target, there: Mapping[str, Mapping[Role, int]]) -> Layout:
    """Return the target's roles per pool, with the fewest flips of the workers that are `there` (by pool and role)."""
    flexible = [name for name in target.workers if name not in target.fixed]
    prefill = {name: min(there.get(name, {}).get(Role.PREFILL, 0), target.workers[name]) for name in flexible}
    decoding = {name: min(there.get(name, {}).get(Role.DECODE, 0), target.workers[name]) for name in flexible}
    left = target.flexible_prefill - sum(prefill.values())
    for name in flexible:  # places that no worker has yet
        more = min(max(left, 0), max(target.workers[name] - prefill[name] - decoding[name], 0))
        prefill[name] += more
        left -= more
    for name in reversed(flexible):  # then flips
        more = min(max(left, -prefill[name]), target.workers[name] - prefill[name])
        prefill[name] += more
        left -= more
    counts: dict[Role, dict[str, int]] = {role: {} for role in ROLES}
    for name, workers in target.workers.items():
        if name in target.fixed:
            counts[target.fixed[name]][name] = workers
        else:
            counts[Role.PREFILL][name], counts[Role.DECODE][name] = prefill[name], workers - prefill[name]
    return Layout.of_roles(counts)


def ratio_text(counts: Mapping[Role, int]) -> str:
    """Return counts per role as `3P:5D`, with mixed workers last (`3P:5D:1M`, or `1M` alone)."""
    prefill, decode, mixed = (counts.get(role, 0) for role in ROLES)
    if mixed and not prefill and not decode:
        return f"{mixed}M"
    return f"{prefill}P:{decode}D" + (f":{mixed}M" if mixed else "")


@dataclass(frozen=True, slots=True)
class _Group:
    """Pools that are alike in the roles they may take, with the bounds of their sum."""

    pools: tuple[tuple[str, int, int], ...]

    @property
    def lowest(self) -> int:
        return sum(low for _, low, _ in self.pools)

    @property
    def highest(self) -> int:
        return sum(high for _, _, high in self.pools)

    def spread(self, total: int) -> dict[str, int]:
        """Give each pool its least, then fill up in the order of the spec."""
        extra = total - self.lowest
        counts: dict[str, int] = {}
        for pool, low, high in self.pools:
            taken = min(extra, high - low)
            counts[pool] = low + taken
            extra -= taken
        return counts


def make_target(spec: InferenceClusterSpec) -> Target:
    """Return the goal of `spec` alone: that of mode Manual."""
    mixed = {pool.name: pool.workers.max for pool in spec.pools if only_role(pool) is Role.MIXED}
    counted = [pool for pool in spec.pools if pool.name not in mixed]
    ratio = spec.balance.ratio
    if ratio is None:
        bounds = {pool.name: (pool.workers.max, pool.workers.max) for pool in counted}
        target = fit(counted, bounds=bounds, prefill=0, decode=0)
    else:
        bounds = {pool.name: (pool.workers.min, pool.workers.max) for pool in counted}
        target = fit(counted, bounds=bounds, prefill=ratio.prefill, decode=ratio.decode)
    return Target(
        workers={pool.name: (target.workers | mixed)[pool.name] for pool in spec.pools},
        fixed=target.fixed | dict.fromkeys(mixed, Role.MIXED),
        flexible_prefill=target.flexible_prefill,
    )


def fit(pools: list[Pool], *, bounds: dict[str, tuple[int, int]], prefill: int, decode: int) -> Target:
    """Fit P:D proportionally into the pools' bounds, at least one of each where the pools allow it.

    `bounds` are the fewest and the most workers of each pool. P = D = 0 means an even split of the most, prefill
    first. One worker in all is `mixed` where its pool may take both roles.
    """
    fixed = {pool.name: role for pool in pools if (role := only_role(pool)) is not None}
    groups = {
        role: _Group(tuple((p.name, *bounds[p.name]) for p in pools if fixed.get(p.name) is role))
        for role in (Role.PREFILL, Role.DECODE, None)
    }
    only_prefill, only_decode, flexible = groups[Role.PREFILL], groups[Role.DECODE], groups[None]
    lowest = only_prefill.lowest + only_decode.lowest + flexible.lowest
    highest = only_prefill.highest + only_decode.highest + flexible.highest

    wished = prefill + decode or highest
    total = min(max(wished, lowest), highest)
    prefill = apportion({Role.PREFILL: prefill, Role.DECODE: decode}, total)[Role.PREFILL] if total > 1 else 0
    # What the pools that cannot flip leave open.
    prefill = _between(
        prefill,
        max(only_prefill.lowest, total - only_decode.highest - flexible.highest),
        min(only_prefill.highest + flexible.highest, total - only_decode.lowest),
    )
    decode = total - prefill

    # Workers of the flexible pools: as many as can be, because a flip costs nothing and a start costs minutes.
    least_prefill, most_prefill = max(0, prefill - only_prefill.highest), prefill - only_prefill.lowest
    least_decode, most_decode = max(0, decode - only_decode.highest), decode - only_decode.lowest
    flexible_total = min(flexible.highest, most_prefill + most_decode)
    flexible_prefill = _between(
        int(flexible_total * (prefill / total if total else 0.0) + 0.5),
        max(least_prefill, flexible_total - most_decode),
        min(most_prefill, flexible_total - least_decode),
    )
    workers = (
        only_prefill.spread(prefill - flexible_prefill)
        | only_decode.spread(decode - (flexible_total - flexible_prefill))
        | flexible.spread(flexible_total)
    )
    if total == 1 and flexible_total == 1:
        fixed |= {name: Role.MIXED for name, count in workers.items() if count and name not in fixed}
        flexible_prefill = 0
    return Target(workers=workers, fixed=fixed, flexible_prefill=flexible_prefill)


def apportion(counts: Mapping[Role, int], total: int) -> dict[Role, int]:
    """Return counts with the sum `total` in the proportion of `counts` (largest remainder).

    Each role that asks for a worker gets one where there are enough. Where none asks, all get alike.
    """
    if not counts or sum(counts.values()) == total:
        return dict(counts)
    weights = {role: count for role, count in counts.items() if count} or dict.fromkeys(counts, 1)
    quotas = {role: total * weight / sum(weights.values()) for role, weight in weights.items()}
    shares = {role: int(quota) for role, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda role: (shares[role] - quotas[role], ROLES.index(role)))
    for role in by_remainder[: total - sum(shares.values())]:
        shares[role] += 1
    if total >= len(shares):
        for role in [role for role, share in shares.items() if share == 0]:
            shares[max(shares, key=lambda each: shares[each])] -= 1
            shares[role] = 1
    return {role: shares.get(role, 0) for role in counts}


def _between(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
