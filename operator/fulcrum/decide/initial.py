"""Which roles workers begin with, before the load was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.best_split import best_split
from fulcrum.decide.pools import bounds_of
from fulcrum.decide.target import make_target
from fulcrum.load.demand import Demand, Load, promised
from fulcrum.performance.fluid import FluidModel, reachable
from fulcrum.performance.layout import Layout

_USUAL: Final = Demand(rate=1.0, isl_tokens=1155.0, osl_tokens=211.0)
"""The mean of Azure's conversations of 2023. As many of them come as keep all workers busy."""


def initial_layout(spec: InferenceClusterSpec, workers: Mapping[str, int], speeds: Mapping[str, WorkerSpeed]) -> Layout:
    """Return the roles of `workers` while nothing is known of the load.

    In the proportion of `balance.ratio`; else the best split for usual traffic, where all speeds are known; else half
    and half.
    """
    used = [pool for pool in spec.pools if workers[pool.name]]
    if spec.balance.ratio is None and used and all(pool.name in speeds for pool in used):
        load = Load(rate=_USUAL.rate, prefill=_USUAL, decode=_USUAL)
        model = FluidModel(speeds, reachable(speeds, promised(spec), load))
        pools = [bounds_of(pool, low=workers[pool.name], high=workers[pool.name]) for pool in used]
        busy = load.scaled(model.role_rate(Layout.of(mixed=workers), load, Role.MIXED))
        layout = best_split(pools, workers, model, busy)
        if layout.prefill and layout.decode:
            return layout
    return make_target(spec, workers)
