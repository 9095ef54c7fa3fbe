"""Which roles workers begin with, before the load was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Ratio
from fulcrum.balance.best_split import splits
from fulcrum.balance.pools import PoolBounds, bounds_of, only_role
from fulcrum.balance.target import fit, layout_of_target
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, Load, Slo, promised
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel, reachable

_USUAL: Final = Demand(rate=1.0, isl_tokens=1155.0, osl_tokens=211.0)
"""The mean of Azure's conversations of 2023. Their rate does not matter: with room to spare, splits are compared by
what they have room for."""


def initial_layout(spec: InferenceClusterSpec, workers: Mapping[str, int], speeds: Mapping[str, WorkerSpeed]) -> Layout:
    """Return the roles of `workers` while nothing is known of the load.

    In the proportion of `balance.ratio`; else the best split for usual traffic, where all speeds are known; else half
    and half.
    """
    ratio = spec.balance.ratio
    used = [pool for pool in spec.pools if workers[pool.name]]
    if ratio is None and used and all(pool.name in speeds for pool in used):
        pools = [bounds_of(pool, low=workers[pool.name], high=workers[pool.name]) for pool in used]
        found = _divided(pools, workers, speeds, promised(spec))
        if found is not None:
            return found
    return layout_in_ratio(spec, dict(workers), ratio)


def _divided(
    pools: list[PoolBounds], workers: Mapping[str, int], speeds: Mapping[str, WorkerSpeed], slo: Slo
) -> Layout | None:
    load = Load(rate=_USUAL.rate, prefill=_USUAL, decode=_USUAL)
    model = PerformanceModel(speeds, reachable(speeds, slo, load))
    found = splits(pools, dict(workers), model, load)
    return next((layout for layout in found if layout.prefill and layout.decode), None)


def layout_in_ratio(spec: InferenceClusterSpec, workers: dict[str, int], ratio: Ratio | None) -> Layout:
    """Return `workers` in the proportion of `ratio`, None being an even split, prefill first; at least one of each.

    It is the layout for which nothing has to be known of the load.
    """
    flexible = [pool for pool in spec.pools if only_role(pool) is not Role.MIXED]
    bounds = {pool.name: (workers[pool.name],) * 2 for pool in flexible}
    prefill, decode = (ratio.prefill, ratio.decode) if ratio is not None else (0, 0)
    target = fit(flexible, bounds=bounds, prefill=prefill, decode=decode)
    mixed = {pool.name: workers[pool.name] for pool in spec.pools if only_role(pool) is Role.MIXED}
    fixed = target.fixed | dict.fromkeys(mixed, Role.MIXED)
    return layout_of_target(replace(target, workers=target.workers | mixed, fixed=fixed), {})
