"""Stage `size`: how many workers each pool is to have. More at once when the load needs it, fewer after a calm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.assign import layout_of
from fulcrum.decide.best_split import best_split
from fulcrum.decide.cheapest import Size, cheapest
from fulcrum.decide.inputs import Inputs
from fulcrum.decide.last_layout import LayoutSaid
from fulcrum.decide.pools import PoolBounds, bounds_of, only_role, worker_cost
from fulcrum.decide.snapshot import ObservedWorker, live
from fulcrum.decide.tuning import TUNING
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Workers per pool, and why they change."""

    workers: dict[str, int]
    reason: Reason | None = None
    """Why there are to be more or fewer; None: as many as before."""
    over_capacity: bool = False
    """Not even all workers keep the promise for what arrives now."""
    considered: tuple[tuple[Layout, Load], ...] = ()
    """The layout that the change is made for, and the load that it is sized by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """Bounds of the pools, without workers that take up a place and cannot serve."""

    spec: InferenceClusterSpec
    applied: Mapping[str, int]
    broken: Mapping[str, int]
    stuck: frozenset[str]
    """Pools for which no node has room: more Pods would only wait, too."""
    known: frozenset[str]
    """Pools whose speed is known; the others keep what they have."""

    def within(self, *, shrink: bool) -> list[PoolBounds]:
        bounds = []
        for pool in self.spec.pools:
            if pool.name not in self.known:
                continue
            usable = self.applied[pool.name] - self.broken[pool.name]
            most = usable if shrink or pool.name in self.stuck else pool.workers.max - self.broken[pool.name]
            least = pool.workers.min - self.broken[pool.name] if shrink else usable
            bounds.append(bounds_of(pool, low=max(0, min(least, most)), high=max(0, most)))
        return bounds

    def workers(self, found: Size, pools: list[PoolBounds]) -> dict[str, int]:
        chosen = found.workers(pools)
        return {
            name: chosen[name] + self.broken[name] if name in chosen else self.applied[name] for name in self.applied
        }


def last_applied(spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], wanted: LayoutSaid) -> dict[str, int]:
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


def size(inputs: Inputs, applied: Mapping[str, int]) -> Sizing:
    """Return the workers to have; `applied`: workers of each pool that the last decision wanted."""
    return Sizing(workers=dict(applied)) if _help_none(inputs) else _sized(inputs, applied)


def _help_none(inputs: Inputs) -> bool:
    """Tell whether each request is late even alone: no worker brings one in time, and admission turns them away."""
    surely = inputs.load.lower
    turned_away = inputs.spec.admission.policy is AdmissionPolicy.PREDICTIVE
    return turned_away and surely.rate > 0 and inputs.model.within_reach(surely).rate <= 0


def _sized(inputs: Inputs, applied: Mapping[str, int]) -> Sizing:
    load, model, workers = inputs.load, inputs.model, inputs.workers
    known = frozenset(pool.name for pool in inputs.spec.pools if model.knows(pool.name))
    broken_since = inputs.now - timedelta(seconds=inputs.measurements.start_seconds or TUNING.start_seconds)
    bounds = _Pools(
        spec=inputs.spec,
        applied=applied,
        broken={name: min(count, _broken(live(workers, name), broken_since)) for name, count in applied.items()},
        stuck=frozenset(w.pool for w in workers if w.unschedulable and not w.deleting),
        known=known,
    )
    stands = layout_of(worker for worker in workers if worker.serving)
    pools = bounds.within(shrink=False)
    present = _needed(pools, inputs, load.lower, stands)
    over = not present.enough or (_said_over(inputs.status) and not _needed(pools, inputs, load.current, stands).enough)
    over = over and not load.serves_all
    ahead = _needed(pools, inputs, load.forecast, stands)
    largest = max((present, ahead), key=lambda found: found.cost)
    if largest.cost:
        reason = Reason.LOAD_FORECAST if largest is ahead else Reason.LOAD_SHIFTED
        sized_by = load.forecast if largest is ahead else load.lower
        return Sizing(
            workers=bounds.workers(largest, pools),
            reason=reason,
            over_capacity=over,
            considered=((largest.layout, sized_by),),
        )
    kept = Sizing(workers=dict(applied), over_capacity=over)
    # Whatever the model says: workers are not given back while requests are late, or right after some were asked for.
    if load.trailing_maximum is None or over or not load.promise_kept or _just_asked(inputs):
        return kept
    if inputs.measurements.plays_distrusted:
        return kept
    if all(applied[pool.name] <= pool.workers.min for pool in inputs.spec.pools):
        return kept
    # Those that stay have room to spare, or a peak that is a little higher would bring workers back.
    smaller = bounds.within(shrink=True)
    fewest = _fewest(smaller, inputs, load.trailing_maximum, share_missed=1 - TUNING.spared_misses)
    fewer = bounds.workers(fewest, smaller)
    if not fewest.enough or sum(fewer.values()) >= sum(applied.values()):
        return kept
    return Sizing(workers=fewer, reason=Reason.LOAD_FELL, considered=((fewest.layout, load.trailing_maximum),))


def _needed(pools: list[PoolBounds], inputs: Inputs, load: Load, stands: Layout) -> Size:
    """Return the cheapest size with all that there is: most often what stands, or a better split of it, is enough."""
    lows = {pool.name: pool.low for pool in pools}
    settled = {name: sum(stands.in_pool(name).values()) for name in lows.keys() | stands.pools} == lows
    if settled and inputs.model.enough(stands, load):
        return Size(layout=stands, cost=0.0, enough=True)
    kind = [pool.as_mixed() for pool in pools] if inputs.together else pools
    split = best_split(kind, lows, inputs.model, load)
    if inputs.model.enough(split, load):
        return Size(layout=split, cost=0.0, enough=True)
    return _fewest(pools, inputs, load)


def _fewest(pools: list[PoolBounds], inputs: Inputs, load: Load, *, share_missed: float = 1.0) -> Size:
    """Return the cheapest size in the kind of layout that stands, so that nothing else moves.

    An only worker does both.
    """
    together = [pool.as_mixed() for pool in pools]
    mixed = cheapest(together, inputs.model, load, share_missed=share_missed)
    alone = mixed.enough and sum(mixed.workers(pools).values()) == 1
    return mixed if inputs.together or alone else cheapest(pools, inputs.model, load, share_missed=share_missed)


def _just_asked(inputs: Inputs) -> bool:
    """Tell whether a worker was created within `balance.scaleDown.stabilization`."""
    since = inputs.now - timedelta(seconds=seconds(inputs.spec.balance.scale_down.stabilization))
    return any(worker.created is not None and worker.created > since for worker in inputs.workers)


def _said_over(status: InferenceClusterStatus) -> bool:
    return status.fault is not None and status.fault.reason is Reason.OVER_CAPACITY


def _broken(workers: Iterable[ObservedWorker], since: datetime) -> int:
    """Count workers that take up a place and will not serve soon: a node that takes as long as usual may still come."""
    return sum(
        1
        for worker in workers
        if worker.engine_failed or (worker.unschedulable and (worker.created is None or worker.created <= since))
    )
