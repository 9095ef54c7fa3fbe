"""The last decision as it was applied: workers of each pool and their roles, from Pods and status, without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool, RoleCounts
from fulcrum.balance.initial import initial_layout
from fulcrum.balance.pools import only_role, worker_cost
from fulcrum.balance.snapshot import ObservedWorker, live
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.performance.layout import ROLES, Layout


def last_applied(
    spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], roles: Mapping[Role, RoleCounts]
) -> dict[str, int]:
    """Return the workers per pool that the last decision wanted, within the bounds of the spec, never none at all.

    Pods alone do not say it: one that died is to be replaced, one that drains is not, and either may be half-way. The
    sum is in the status (`roles[].desired`); the pools are those of the Pods.
    """
    there = {pool.name: live(workers, pool.name) for pool in spec.pools}
    counts = {name: len(found) for name, found in there.items()}
    desired = sum(counts.desired for counts in roles.values())
    if desired:
        leaving = [w for p in reversed(spec.pools) for w in there[p.name] if w.role is Role.DRAINING]
        for worker in leaving[: max(0, sum(counts.values()) - desired)]:
            counts[worker.pool] -= 1
        missing = desired - sum(counts.values())
        for pool in _lost(spec, workers, roles, missing) if missing > 0 else ():
            counts[pool.name] += 1
    for pool in spec.pools:
        counts[pool.name] = max(pool.workers.min, min(counts[pool.name], pool.workers.max))
    return _with_floor(spec, counts)


def _lost(
    spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], roles: Mapping[Role, RoleCounts], missing: int
) -> list[Pool]:
    """Return the pools of workers that died, one entry each: where Pods still end, else where a role lacks workers."""
    pools = {pool.name: pool for pool in spec.pools}
    dead = [w.pool for w in workers if not w.live and w.role is not Role.DRAINING and w.pool in pools]
    lost = [pools[name] for name in dead[:missing]]
    free = {pool.name: pool.workers.max - len(live(workers, pool.name)) - lost.count(pool) for pool in spec.pools}
    there = Counter(worker.role for worker in workers if not worker.deleting)
    gaps = Counter({role: counts.desired - there[role] for role, counts in roles.items()})

    def urgency(pool: Pool) -> tuple[bool, int, bool]:
        """A pool below its least, the pool that can fill the largest gap, one that cannot flip before one that can."""
        below = free[pool.name] > pool.workers.max - pool.workers.min
        role = only_role(pool)
        return below, max(gaps.values(), default=0) if role is None else gaps[role], role is not None

    while len(lost) < missing and (able := [pool for pool in spec.pools if free[pool.name] > 0]):
        chosen = max(able, key=urgency)
        gaps[only_role(chosen) or max(gaps, key=lambda role: gaps[role], default=Role.DECODE)] -= 1
        free[chosen.name] -= 1
        lost.append(chosen)
    return lost


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
    roles: Mapping[Role, RoleCounts],
    speeds: Mapping[str, WorkerSpeed],
) -> Layout:
    """Return the roles of the last decision, as far as the status says them; else the initial ones of the spec."""
    desired = Counter({role: counts.desired for role, counts in roles.items()})
    if not desired.total():
        return initial_layout(spec, applied, speeds)
    counts: dict[Role, Counter[str]] = {role: Counter() for role in ROLES}
    left = dict(applied)
    for pool in spec.pools:
        fixed = only_role(pool)
        have = Counter(w.role for w in live(workers, pool.name)) if fixed is None else {fixed: left[pool.name]}
        for role in ROLES:
            taken = min(left[pool.name], have.get(role, 0))
            counts[role][pool.name] = taken
            desired[role] -= taken
            left[pool.name] -= taken
    # Only once all are counted that have a role is it known which role those lack that drain, or are gone.
    for pool in spec.pools:
        for _ in range(left[pool.name]):
            role = max(ROLES, key=lambda role: desired[role])
            counts[role][pool.name] += 1
            desired[role] -= 1
    return Layout.of_roles(counts)
