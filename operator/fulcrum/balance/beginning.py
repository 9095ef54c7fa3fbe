"""Which roles workers begin with, before anybody has seen the load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance.pools import PoolBounds, bounds_of
from fulcrum.balance.split import splits
from fulcrum.balance.standing import layout_in_ratio
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, Load, Slo, promised
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel, reachable

_USUAL: Final = Demand(rate=1.0, isl_tokens=1155.0, osl_tokens=211.0)
"""The mean of Azure's conversations of 2023. Their rate does not matter: with room to spare, splits are compared by
what they have room for."""


def first_layout(spec: InferenceClusterSpec, workers: Mapping[str, int], speeds: Mapping[str, WorkerSpeed]) -> Layout:
    """Return the roles of `workers` while nothing is known of the load.

    In the proportion of `balance.ratio`; else the best split for usual traffic, where all speeds are known; else half
    and half.
    """
    ratio = spec.balance.ratio
    used = [pool for pool in spec.pools if workers[pool.name]]
    if ratio is None and used and all(pool.name in speeds for pool in used):
        rooms = [bounds_of(pool, low=workers[pool.name], high=workers[pool.name]) for pool in used]
        found = _divided(rooms, workers, speeds, promised(spec))
        if found is not None:
            return found
    return layout_in_ratio(spec, dict(workers), ratio)


def _divided(
    rooms: list[PoolBounds], workers: Mapping[str, int], speeds: Mapping[str, WorkerSpeed], slo: Slo
) -> Layout | None:
    load = Load(rate=_USUAL.rate, prefill=_USUAL, decode=_USUAL)
    service = PerformanceModel(speeds, reachable(speeds, slo, load))
    found = splits(rooms, dict(workers), service, load)
    return next((layout for layout in found if layout.prefill and layout.decode), None)
