"""The roles of the last decision, from status and Pods, without memory; before the first one, the initial roles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.best_split import best_split
from fulcrum.decide.pools import bounds_of, only_role
from fulcrum.decide.snapshot import ObservedWorker, live
from fulcrum.decide.target import make_target
from fulcrum.load.demand import Demand, Load, promised
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.performance.reach import reachable

LayoutSaid = Mapping[str, Mapping[Role, int]] | None
"""`status.layout`: workers by pool and role. None before the first decision, and where the CRD has no such field."""
_USUAL: Final = Demand(rate=1.0, isl_tokens=1155.0, osl_tokens=211.0)
"""The mean of Azure's conversations of 2023. As many of them come as keep all workers busy."""


def last_layout(
    spec: InferenceClusterSpec,
    applied: Mapping[str, int],
    *,
    workers: Sequence[ObservedWorker],
    wanted: LayoutSaid,
    speeds: Mapping[str, WorkerSpeed],
) -> Layout:
    """Return the roles of the last decision, as far as the status says them; else the initial ones of the spec.

    What has a role keeps it; workers that drain, or are gone, get those that are then missing.
    """
    if not wanted:
        return initial_layout(spec, applied, speeds)
    counts: dict[Role, Counter[str]] = {role: Counter() for role in ROLES}
    for pool in spec.pools:
        fixed, left = only_role(pool), applied[pool.name]
        have = Counter(w.role for w in live(workers, pool.name)) if fixed is None else {fixed: left}
        missing = Counter(wanted.get(pool.name, {}))
        for role in ROLES:
            taken = min(left, have.get(role, 0))
            counts[role][pool.name] = taken
            missing[role] -= taken
            left -= taken
        for _ in range(left):
            role = max(ROLES, key=lambda role: missing[role])
            counts[role][pool.name] += 1
            missing[role] -= 1
    return Layout.of_roles(counts)


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
