"""Mode External: workers per pool and role as the cluster's InferenceScales ask for, within what the spec allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.scale_types import scaled_roles
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.balance.assign import follow
from fulcrum.balance.decision import Decision, Reasons, RoleScale
from fulcrum.balance.snapshot import Snapshot
from fulcrum.balance.target import apportion
from fulcrum.performance.layout import Layout

Counts = dict[str, dict[Role, int]]
"""Workers by pool and role."""


def follow_scales(snapshot: Snapshot, now: datetime) -> Decision:
    """Return what is to be done in mode External: flips where they do, else new workers and drains."""
    spec = snapshot.spec
    asked = _asked(snapshot)
    desired = _within_bounds(spec, asked)
    workers = {pool: sum(counts.values()) for pool, counts in desired.items()}
    goal = Layout().plus((pool, role, count) for pool, counts in desired.items() for role, count in counts.items())
    resting_since = now - timedelta(seconds=seconds(spec.balance.flip.min_dwell))
    wanted_before = sum(counts.desired for counts in snapshot.status.roles.values())
    grows, shrinks = 0 < wanted_before < goal.total, wanted_before > goal.total
    return Decision(
        assignment=follow(spec, snapshot.workers, workers, goal, resting_since=resting_since),
        reasons=Reasons(
            flip=Reason.SCALE_REQUESTED,
            create=Reason.SCALE_REQUESTED if grows else Reason.WORKER_CREATED,
            drain=Reason.SCALE_REQUESTED if shrinks else Reason.WORKER_DRAINING,
        ),
        scales=_scales(spec, asked, desired),
    )


def _scales(spec: InferenceClusterSpec, asked: Counts, desired: Counts) -> tuple[RoleScale, ...]:
    return tuple(
        RoleScale(
            pool=pool.name,
            role=role,
            asked=count,
            desired=desired[pool.name].get(role, 0),
            limit=_limit(pool, asked[pool.name]) if desired[pool.name].get(role, 0) != count else "",
        )
        for pool in spec.pools
        for role, count in asked[pool.name].items()
    )


def _asked(snapshot: Snapshot) -> Counts:
    """Return what the scales ask for. One that is made now begins with what stands, so that nothing changes.

    It begins with one worker at least: an HPA leaves alone what asks for none.
    """
    there = Counter((worker.pool, worker.role) for worker in snapshot.workers if worker.live)
    return {
        pool.name: {
            role: snapshot.asked.get((pool.name, role), max(1, there[pool.name, role])) for role in scaled_roles(pool)
        }
        for pool in snapshot.spec.pools
    }


def _within_bounds(spec: InferenceClusterSpec, asked: Counts) -> Counts:
    """Fit each pool's roles into its bounds in the proportion that was asked for; no kind of work without a worker."""
    desired = {
        pool.name: apportion(
            asked[pool.name], min(max(sum(asked[pool.name].values()), pool.workers.min), pool.workers.max)
        )
        for pool in spec.pools
    }
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if not any(counts.get(role) or counts.get(Role.MIXED) for counts in desired.values()):
            _serve(spec, desired, role, other)
    return desired


def _serve(spec: InferenceClusterSpec, desired: Counts, role: Role, other: Role) -> None:
    """Give `role`, which has no worker, one: a free place, else one of `other`, else the last worker does both."""
    able = [pool for pool in spec.pools if role in scaled_roles(pool) or Role.MIXED in scaled_roles(pool)]
    for pool in able:
        if sum(desired[pool.name].values()) < pool.workers.max:
            desired[pool.name][role if role in scaled_roles(pool) else Role.MIXED] += 1
            return
    for pool in able:
        if desired[pool.name].get(other, 0) > 1:
            desired[pool.name][other] -= 1
            desired[pool.name][role] = 1
            return
    for pool in able:
        if desired[pool.name].get(other, 0) == 1:
            desired[pool.name] = {Role.PREFILL: 0, Role.DECODE: 0, Role.MIXED: 1}
            return


def _limit(pool: Pool, asked: Mapping[Role, int]) -> str:
    total = sum(asked.values())
    gpus = pool.parallelism.tensor * pool.parallelism.pipeline if pool.accelerator != "cpu" else 0

    def of(workers: int) -> str:
        return f"{workers} workers" + (f" ({workers * gpus} GPUs)" if gpus else "")

    said = f"The InferenceScales of pool {pool.name} ask for {of(total)} in all;"
    share = "They get it in the proportion that they ask for."
    if total > pool.workers.max:
        return f"{said} workers.max is {of(pool.workers.max)}. {share}"
    if total < pool.workers.min:
        return f"{said} workers.min is {of(pool.workers.min)}. {share}"
    return "No role is left without a worker: requests need both prefill and decode."
