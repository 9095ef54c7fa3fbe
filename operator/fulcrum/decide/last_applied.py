"""The last decision as it was applied: workers of each pool and their roles, from status and Pods, without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.initial import initial_layout
from fulcrum.decide.pools import only_role, worker_cost
from fulcrum.decide.snapshot import ObservedWorker, live
from fulcrum.performance.layout import ROLES, Layout

Wanted = Mapping[str, Mapping[Role, int]] | None
"""`status.layout`: workers by pool and role. None before the first decision, and where the CRD has no such field."""


def last_applied(spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], wanted: Wanted) -> dict[str, int]:
    """Return the workers per pool that the last decision wanted, within the bounds of the spec, never none at all.

    Pods alone do not say it: one that died is to be replaced, one that drains is not. Nor does the status alone: what
    was created after it was last written stays, until a decision says otherwise.
    """
    counts = {}
    for pool in spec.pools:
        there = live(workers, pool.name)
        staying = sum(worker.role is not Role.DRAINING for worker in there) if wanted else len(there)
        count = max(sum((wanted or {}).get(pool.name, {}).values()), staying)
        counts[pool.name] = max(pool.workers.min, min(count, pool.workers.max))
    return _with_floor(spec, counts)


def _with_floor(spec: InferenceClusterSpec, workers: dict[str, int]) -> dict[str, int]:
    """Return `workers` with what it takes at least to serve requests: one that does both, or one of each role."""
    able = {pool.name: only_role(pool) for pool in spec.pools if pool.workers.max > 0}
    used = {able[name] for name, count in workers.items() if count and name in able}
    if used & {None, Role.MIXED} or {Role.PREFILL, Role.DECODE} <= used:
        return workers
    raised = dict(workers)
    cheapest = sorted((pool for pool in spec.pools if pool.name in able), key=worker_cost)
    both = next((pool for pool in cheapest if able[pool.name] in (None, Role.MIXED)), None)
    if both is not None and not used:
        alone = Role.MIXED in both.roles or both.workers.max == 1
        raised[both.name] = max(raised[both.name], 1 if alone else 2)
        return raised
    for role in {Role.PREFILL, Role.DECODE} - used:
        first = next((pool for pool in cheapest if able[pool.name] is role), both)
        if first is not None:
            raised[first.name] = max(raised[first.name], 1)
    return raised


def last_layout(
    spec: InferenceClusterSpec,
    applied: Mapping[str, int],
    *,
    workers: Sequence[ObservedWorker],
    wanted: Wanted,
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
