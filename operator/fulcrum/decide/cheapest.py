"""How many workers of each pool a load needs: the cheapest that carry it with room to keep the promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf

from fulcrum.api.names import Role
from fulcrum.decide.pools import PoolBounds
from fulcrum.load.demand import Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.performance.rates import UnitRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Workers that a load needs."""

    layout: Layout
    cost: float
    """Of the workers beyond the ones that are there in any case (`PoolBounds.cost`)."""
    enough: bool
    """The promise holds; False: it does not even with all that the pools may have."""

    def workers(self, pools: Iterable[PoolBounds]) -> dict[str, int]:
        """Return the workers per pool, never fewer than its lowest."""
        return {pool.name: max(pool.low, _used(self.layout, pool.name)) for pool in pools}


def cheapest(pools: Sequence[PoolBounds], model: FluidModel, load: Load, *, share_missed: float = 1.0) -> Size:
    """Return the cheapest size in which flippable workers either prefill or decode.

    Workers that a pool has in any case (`PoolBounds.low`) cost nothing. With all workers of `pools` as mixed ones
    (`PoolBounds.as_mixed`) it is the cheapest size of those. `share_missed` as for `FluidModel.needed`.
    """
    ways = _ways(pools, {pool.name: model.unit_rates(pool.name, load) for pool in pools})
    missing, layout = _cover(pools, ways, model.needed(load, share_missed=share_missed))
    return Size(layout=layout, cost=_cost(pools, layout), enough=missing <= 0)


def _cost(pools: Sequence[PoolBounds], layout: Layout) -> float:
    return sum(pool.cost * max(0, _used(layout, pool.name) - pool.low) for pool in pools)


def _used(layout: Layout, pool: str) -> int:
    return sum(layout.in_pool(pool).values())


def _cover(pools: Sequence[PoolBounds], ways: Sequence[_Way], wanted: dict[Role, float]) -> tuple[float, Layout]:
    """Return (requests/s left over, cheapest layout) for workers that carry `wanted`.

    A linear program with two constraints and few pools: the best of a few greedy ways solves it.
    """
    tried = (_fill(pools, way, wanted) for way in ways)
    missing, _, layout = min(tried, key=lambda each: (each[0], each[1]))
    return missing, layout


@dataclass(frozen=True, slots=True)
class _Tranche:
    """Workers of a pool for one role: the ones that are there in any case, or the ones that would come on top."""

    pool: str
    kept: bool
    rate: float
    price: float
    """Cost per request/s."""
    share: float
    """Of the requests that the pool takes."""
    advantage: float
    """What the role gains against what the other one loses (Ricardo); infinite for pools that cannot flip."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One greedy order in which workers are taken."""

    tranches: Mapping[Role, Sequence[_Tranche]]
    mixed_first: bool
    decode_first: bool


class _Basket:
    """Workers that were taken, and workers that are left."""

    def __init__(self, pools: Sequence[PoolBounds], tranches: Mapping[Role, Sequence[_Tranche]]) -> None:
        self._pools = pools
        self._left = {(r.name, kept): r.low if kept else r.high - r.low for r in pools for kept in (True, False)}
        self._taken: dict[Role, dict[str, int]] = {role: {} for role in ROLES}
        self._tranches = tranches

    def take(self, role: Role, rate: float, *, extra: bool = True, least: int = 0) -> float:
        """Take workers for `rate` requests/s, and at least `least`; returns the requests/s that they carry."""
        carried, count = 0.0, 0
        open_rate = {tranche.pool: tranche.share * rate for tranche in self._tranches[role]}
        for tranche in self._tranches[role]:
            if not extra and not tranche.kept:
                continue
            wanted = min(rate - carried, open_rate[tranche.pool])
            number = max(ceil(wanted / tranche.rate - 1e-9), least - count, 0)
            number = min(number, self._left[tranche.pool, tranche.kept])
            self._left[tranche.pool, tranche.kept] -= number
            self._taken[role][tranche.pool] = self._taken[role].get(tranche.pool, 0) + number
            served = number * tranche.rate
            carried += served if tranche.share == 1.0 else min(served, open_rate[tranche.pool])
            open_rate[tranche.pool] -= served
            count += number
        return carried

    def can(self, role: Role) -> bool:
        return any(self._left[tranche.pool, tranche.kept] for tranche in self._tranches[role])

    @property
    def cost(self) -> float:
        return sum(pool.cost * (pool.high - pool.low - self._left[pool.name, False]) for pool in self._pools)

    @property
    def layout(self) -> Layout:
        return Layout.of_roles(self._taken)


def _fill(pools: Sequence[PoolBounds], way: _Way, wanted: dict[Role, float]) -> tuple[float, float, Layout]:
    """Return (requests/s left over, cost, layout) of one way."""
    basket = _Basket(pools, way.tranches)
    divided = basket.can(Role.PREFILL) and basket.can(Role.DECODE)
    together = basket.take(
        Role.MIXED, max(wanted.values()), extra=way.mixed_first or not divided, least=0 if divided else 1
    )
    rest = {role: max(rate - together, 0.0) for role, rate in wanted.items()}
    if divided and (max(rest.values()) > 0 or not basket.layout.complete):
        for role in (Role.DECODE, Role.PREFILL) if way.decode_first else (Role.PREFILL, Role.DECODE):
            rest[role] -= basket.take(role, rest[role], least=1)
    missing = max(rest.values())
    if missing > 0:
        missing -= basket.take(Role.MIXED, missing)
    layout = basket.layout
    return (max(missing, 0.0) if layout.complete else inf), basket.cost, layout


def _ways(pools: Sequence[PoolBounds], rates: Mapping[str, UnitRates]) -> list[_Way]:
    """Return the ways that can differ: of one pool there is one, and without mixed workers they cannot come first."""
    either = (False, True) if len(pools) > 1 else (False,)
    by_price, by_advantage = (
        {role: _tranches(pools, rates, role, by_price=each) for role in ROLES} for each in (True, False)
    )
    mixed = either if by_price[Role.MIXED] else (False,)
    orders = (by_price, by_advantage)[: len(either)]
    return [
        _Way(order, mixed_first, decode_first) for mixed_first, decode_first, order in product(mixed, either, orders)
    ]


def _tranches(
    pools: Sequence[PoolBounds], rates: Mapping[str, UnitRates], role: Role, *, by_price: bool
) -> list[_Tranche]:
    found: list[_Tranche] = []
    for pool in pools:
        if pool.role is not role and (pool.role is not None or role is Role.MIXED):
            continue
        each = rates[pool.name]
        rate = each.of_role(role)
        if rate <= 0:
            continue  # too slow for the promise even when idle
        lost = each.decode if role is Role.PREFILL else each.prefill
        advantage = rate / lost if pool.role is None and lost else inf
        found += [
            _Tranche(pool.name, kept, rate, pool.cost / rate, each.share_of(role), advantage) for kept in (True, False)
        ]
    return sorted(
        found, key=lambda t: (not t.kept, *((t.price, -t.advantage) if by_price else (-t.advantage, t.price)))
    )
