"""Sleep and wake: with `balance.idleAfter` all workers go after a calm, and come back for a request.

The state is kept in the status; everything else is read anew in each tick, so a lost tick changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.status import timestamp
from fulcrum.api.types import IdleDepth, InferenceClusterSpec, Pool, RoleCounts, SleepState, SleepStatus
from fulcrum.capacity.start_timeout import start_timeout_seconds
from fulcrum.decide.measurements import Callers
from fulcrum.decide.pools import only_role, worker_cost
from fulcrum.decide.snapshot import ObservedWorker, Snapshot, served_roles
from fulcrum.decide.tuning import TUNING
from fulcrum.rollout.engine_sleep import all_asleep, sleepers


def sleep_of(snapshot: Snapshot, workers: Sequence[ObservedWorker], now: datetime) -> SleepStatus | None:
    """Return whether the cluster sleeps from now on; None where its spec does not let it.

    `workers` are those of the snapshot without the ones that share a place with another one.
    """
    idle_after = snapshot.spec.balance.idle_after
    if idle_after is None:
        return None
    was = snapshot.status.sleep or SleepStatus(state=SleepState.WAKING, since=timestamp(now))
    callers = snapshot.measurements.callers or Callers()
    since_seconds = max(0.0, (now - datetime.fromisoformat(was.since)).total_seconds())
    if snapshot.paused:
        down = was.down
    elif was.down:
        down = not _wakes(snapshot, workers, callers, since_seconds)
    else:
        down = _calm(snapshot, workers, callers, was, since_seconds=since_seconds, idle_seconds=seconds(idle_after))
    state = _state(snapshot.spec, workers, was, down=down)
    expected = snapshot.measurements.load_expected_seconds
    depth = was.depth
    if down:
        depth = IdleDepth.ENGINES if sleepers(snapshot.spec, workers) else IdleDepth.PODS
    first_token_seconds, by_depth = callers.first_token_seconds, was.first_token_by_depth
    if first_token_seconds is None:
        first_token_seconds = was.first_token_seconds
    elif depth is not None and not down:
        by_depth = {**(by_depth or {}), depth: first_token_seconds}
    return SleepStatus(
        state=state,
        since=was.since if state == was.state else timestamp(now),
        held=callers.held,
        first_token_seconds=first_token_seconds,
        depth=depth,
        first_token_by_depth=by_depth,
        load_expected=None if expected is None else _steady(now + timedelta(seconds=expected), was.load_expected),
    )


def _wakes(snapshot: Snapshot, workers: Sequence[ObservedWorker], callers: Callers, since_seconds: float) -> bool:
    """Tell whether workers are wanted again: by a request, by the hour, or because gateways cannot be heard."""
    asked = callers.idle_seconds is not None and callers.idle_seconds < since_seconds
    deaf = callers.silent_seconds > TUNING.silent_seconds
    return callers.held > 0 or asked or deaf or _expected_within(snapshot, _lead_seconds(snapshot, workers))


def _calm(
    snapshot: Snapshot,
    workers: Sequence[ObservedWorker],
    callers: Callers,
    was: SleepStatus,
    *,
    since_seconds: float,
    idle_seconds: float,
) -> bool:
    """Tell whether no worker is needed: no gateway had a request for long enough, and none is expected soon."""
    quiet = callers.quiet_seconds
    if quiet is None or callers.held > 0 or quiet < idle_seconds:
        return False
    # A client may have given up while workers start, and come back: a start is finished before it is given up.
    awake_seconds = idle_seconds
    if was.state == SleepState.WAKING:
        awake_seconds += start_timeout_seconds(snapshot.spec, snapshot.model)
    soon = _expected_within(snapshot, _lead_seconds(snapshot, workers) + idle_seconds)
    return since_seconds >= awake_seconds and not soon


def _lead_seconds(snapshot: Snapshot, workers: Sequence[ObservedWorker]) -> float:
    """Return how long before load is expected workers are woken: what that takes, and what it takes to notice.

    Engines that sleep take what they took the last time, as a client saw it; before that, no longer than a start.
    """
    known = snapshot.measurements.start_seconds
    sleep = snapshot.status.sleep
    if sleep is not None and sleepers(snapshot.spec, workers):
        known = (sleep.first_token_by_depth or {}).get(IdleDepth.ENGINES, known)
    start = TUNING.start_seconds if known is None else known
    return start + seconds(snapshot.spec.balance.forecast.interval) + TUNING.tick_seconds


def _expected_within(snapshot: Snapshot, ahead_seconds: float) -> bool:
    expected = snapshot.measurements.load_expected_seconds
    return expected is not None and expected <= ahead_seconds


def _state(
    spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], was: SleepStatus, *, down: bool
) -> SleepState:
    if down:
        return SleepState.ASLEEP if all_asleep(spec, workers, was) else SleepState.FALLING_ASLEEP
    if was.state == SleepState.AWAKE or {Role.PREFILL, Role.DECODE} <= served_roles(workers):
        return SleepState.AWAKE
    return SleepState.WAKING


def _steady(moment: datetime, was: str | None) -> str:
    """Return the time that was said before while the new one is close to it: each change is a write."""
    if was is not None and abs(moment - datetime.fromisoformat(was)) < timedelta(
        seconds=TUNING.expected_change_seconds
    ):
        return was
    return timestamp(moment)


def wakes_from_nothing(roles: Mapping[Role, RoleCounts], workers: Iterable[ObservedWorker]) -> bool:
    """Tell whether there is no worker, and the last decision wanted none; `roles` are the counts of the status."""
    wanted = sum(counts.desired for counts in roles.values())
    return not wanted and not any(worker.live for worker in workers)


def smallest(spec: InferenceClusterSpec) -> Mapping[str, int]:
    """Return the fewest workers that serve, by pool: one that does both, else one of each role.

    Pools that take every request come before pools with `admits`, cheap ones before dear ones.
    """
    pools = sorted(
        (pool for pool in spec.pools if pool.workers.max > 0),
        key=lambda pool: (pool.admits is not None, worker_cost(pool)),
    )
    counts = {pool.name: 0 for pool in spec.pools}
    both = next((pool for pool in pools if only_role(pool) in (None, Role.MIXED)), None)
    for pool in [both] if both is not None else _one_of_each(pools):
        counts[pool.name] = 1
    return counts


def _one_of_each(pools: list[Pool]) -> list[Pool]:
    found = (next((pool for pool in pools if only_role(pool) is role), None) for role in (Role.PREFILL, Role.DECODE))
    return [pool for pool in found if pool is not None]
