"""Mode External: workers per pool and role as the cluster's InferenceScales ask for, within what the spec allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.scale_types import scaled_roles
from fulcrum.api.types import InferenceClusterSpec, Pool, RoleCounts
from fulcrum.decide.assign import follow
from fulcrum.decide.decision import BalanceDecision, Reasons, RoleScale
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.decide.target import apportion
from fulcrum.performance.layout import Layout

Counts = dict[str, Counter[Role]]
"""Workers by pool and role."""


def follow_scales(
    spec: InferenceClusterSpec,
    workers: Sequence[ObservedWorker],
    roles: Mapping[Role, RoleCounts],
    said: Mapping[tuple[str, Role], int],
    now: datetime,
) -> BalanceDecision:
    """Return what is to be done in mode External: flips where they do, else new workers and drains.

    `roles` are the counts of the status, `said` what the InferenceScales that there are ask for, by pool and role.
    """
    asked = _asked(spec, workers, said)
    desired = _within_bounds(spec, asked)
    goal = Layout().plus((pool, role, count) for pool, counts in desired.items() for role, count in counts.items())
    resting_since = now - timedelta(seconds=seconds(spec.balance.flip.min_dwell))
    before = sum(counts.desired for counts in roles.values())
    grows, shrinks = 0 < before < goal.total, before > goal.total
    return BalanceDecision(
        assignment=follow(spec, workers, goal, resting_since=resting_since),
        reasons=Reasons(
            flip=Reason.SCALE_REQUESTED,
            create=Reason.SCALE_REQUESTED if grows else Reason.WORKER_CREATED,
            drain=Reason.SCALE_REQUESTED if shrinks else Reason.WORKER_DRAINING,
        ),
        scales=tuple(
            RoleScale(
                pool=pool.name,
                role=role,
                asked=count,
                desired=desired[pool.name][role],
                limit=_limit(pool, asked[pool.name]) if desired[pool.name][role] != count else "",
            )
            for pool in spec.pools
            for role, count in asked[pool.name].items()
        ),
    )


def _asked(
    spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], said: Mapping[tuple[str, Role], int]
) -> Counts:
    """Return what the scales ask for. One that is made now begins with what stands, so that nothing changes.

    It begins with one worker at least: an HPA leaves alone what asks for none.
    """
    there = Counter((worker.pool, worker.role) for worker in workers if worker.live)
    asked: Counts = {}
    for pool in spec.pools:
        places = {role: (pool.name, role) for role in scaled_roles(pool)}
        asked[pool.name] = Counter({role: said.get(at, max(1, there[at])) for role, at in places.items()})
    return asked


def _within_bounds(spec: InferenceClusterSpec, asked: Counts) -> Counts:
    """Fit each pool's roles into its bounds in the proportion that was asked for; no kind of work without a worker."""
    desired = {}
    for pool in spec.pools:
        wanted = asked[pool.name]
        if wanted.total() < pool.workers.min:
            # A role that asks for none would else get one worker more than that.
            wanted = Counter({role: max(1, count) for role, count in wanted.items()})
        total = min(max(asked[pool.name].total(), pool.workers.min), pool.workers.max)
        desired[pool.name] = Counter(apportion(wanted, total))
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if not any(counts[role] or counts[Role.MIXED] for counts in desired.values()):
            _serve(spec, desired, role, other)
    return desired


def _serve(spec: InferenceClusterSpec, desired: Counts, role: Role, other: Role) -> None:
    """Give `role`, which has no worker, one: a free place, else one of `other`, else the last worker does both."""
    able = [pool for pool in spec.pools if {role, Role.MIXED} & {*scaled_roles(pool)}]
    free = next((pool for pool in able if desired[pool.name].total() < pool.workers.max), None)
    if free is not None:
        desired[free.name][role if role in scaled_roles(free) else Role.MIXED] += 1
        return
    givers = [desired[pool.name] for pool in able if desired[pool.name][other] > 0]
    several = next((counts for counts in givers if counts[other] > 1), None)
    if several is not None:
        several.update({other: -1, role: 1})
    elif givers:
        givers[0].update({other: -1, Role.MIXED: 1})


def _limit(pool: Pool, asked: Counter[Role]) -> str:
    """Say why a role of the pool does not get what its scale asks for."""
    gpus = pool.gpus_per_worker

    def of(workers: int) -> str:
        return f"{workers} workers" + (f" ({workers * gpus} GPUs)" if gpus else "")

    total, least, most = asked.total(), pool.workers.min, pool.workers.max
    if least <= total <= most:
        return "No role is left without a worker: requests need both prefill and decode."
    bound = f"workers.max is {of(most)}" if total > most else f"workers.min is {of(least)}"
    return (
        f"The InferenceScales of pool {pool.name} ask for {of(total)} in all; {bound}. They get it in the proportion "
        "that they ask for."
    )
