"""The last decision as it was applied: workers of each pool and their roles, from Pods and status, without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool, RoleCounts
from fulcrum.balance.initial import initial_layout
from fulcrum.balance.pools import only_role, worker_cost
from fulcrum.balance.snapshot import Worker, in_pool
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.performance.layout import ROLES, Layout


def live(workers: Iterable[Worker], pool: str) -> tuple[Worker, ...]:
    """Return the workers of a pool that are not on their way out of the world, by ordinal."""
    return tuple(worker for worker in in_pool(workers, pool) if worker.live)


def last_applied(
    spec: InferenceClusterSpec, workers: Sequence[Worker], roles: Mapping[Role, RoleCounts]
) -> dict[str, int]:
    """Return the workers per pool that the last decision wanted, within the bounds of the spec, never none at all.

    Pods alone do not say it: one that died is to be replaced, one that drains is not, and either may be half-way. The
    sum is in the status (`roles[].desired`); the pools are those of the Pods.
    """
    counts = {pool.name: len(live(workers, pool.name)) for pool in spec.pools}
    desired = sum(counts.desired for counts in roles.values())
    if desired:
        leaving = [w for p in reversed(spec.pools) for w in live(workers, p.name) if w.role is Role.DRAINING]
        for worker in leaving[: max(0, sum(counts.values()) - desired)]:
            counts[worker.pool] -= 1
        for pool in _lost(spec, workers, roles, desired - sum(counts.values())):
            counts[pool.name] += 1
    for pool in spec.pools:
        counts[pool.name] = max(pool.workers.min, min(counts[pool.name], pool.workers.max))
    return with_floor(spec, counts)


def _lost(
    spec: InferenceClusterSpec, workers: Sequence[Worker], roles: Mapping[Role, RoleCounts], missing: int
) -> list[Pool]:
    """Return the pools of workers that died, one entry each: where Pods still end, else where a role lacks workers."""
    pools = {pool.name: pool for pool in spec.pools}
    lost = [
        pools[worker.pool]
        for worker in workers
        if (worker.deleting or worker.ended) and worker.role is not Role.DRAINING and worker.pool in pools
    ][: max(missing, 0)]
    free = {pool.name: pool.workers.max - len(live(workers, pool.name)) for pool in spec.pools}
    for pool in lost:
        free[pool.name] -= 1
    gaps = {
        role: counts.desired - sum(1 for worker in workers if worker.role is role and not worker.deleting)
        for role, counts in roles.items()
    }
    while len(lost) < missing:
        able = [pool for pool in spec.pools if free[pool.name] > 0]
        if not able:
            break
        # A pool below its least, the pool that can fill the largest gap, one that cannot flip before one that can.
        chosen = max(
            able,
            key=lambda pool: (
                free[pool.name] > pool.workers.max - pool.workers.min,
                _gap(gaps, pool),
                only_role(pool) is not None,
            ),
        )
        role = only_role(chosen) or max(gaps, key=lambda role: gaps[role], default=Role.DECODE)
        gaps[role] = gaps.get(role, 0) - 1
        free[chosen.name] -= 1
        lost.append(chosen)
    return lost


def _gap(gaps: dict[Role, int], pool: Pool) -> int:
    role = only_role(pool)
    return gaps.get(role, 0) if role is not None else max(gaps.values(), default=0)


def with_floor(spec: InferenceClusterSpec, workers: dict[str, int]) -> dict[str, int]:
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
    for role in (Role.PREFILL, Role.DECODE):
        first = next((p.name for p in cheapest if able[p.name] is role), both.name if both is not None else None)
        if role not in used and first is not None:
            raised[first] = max(raised[first], 1)
    return raised


def last_layout(
    spec: InferenceClusterSpec,
    applied: Mapping[str, int],
    *,
    workers: Sequence[Worker],
    roles: Mapping[Role, RoleCounts],
    speeds: Mapping[str, WorkerSpeed],
) -> Layout:
    """Return the roles of the last decision, as far as the status says them; else the initial ones of the spec."""
    desired = {role: counts.desired for role, counts in roles.items()}
    if not sum(desired.values()):
        return initial_layout(spec, applied, speeds)
    counts: dict[Role, dict[str, int]] = {role: {} for role in ROLES}
    for pool in sorted(spec.pools, key=lambda pool: only_role(pool) is None):
        left = applied[pool.name]
        fixed = only_role(pool)
        have = Counter(w.role for w in live(workers, pool.name))
        for role in counts if fixed is None else (fixed,):
            taken = left if fixed is not None else min(left, max(have[role], 0))
            counts[role][pool.name] = taken
            left -= taken
            desired[role] = desired.get(role, 0) - taken
        for _ in range(left):
            role = max(counts, key=lambda role: desired.get(role, 0))
            counts[role][pool.name] = counts[role].get(pool.name, 0) + 1
            desired[role] = desired.get(role, 0) - 1
    return Layout.of_roles(counts)
