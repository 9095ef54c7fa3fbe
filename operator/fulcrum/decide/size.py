"""Stage `size`: how many workers each pool is to have. More at once when the load needs it, fewer after a calm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.assign import layout_of
from fulcrum.decide.best_split import splits
from fulcrum.decide.cheapest import Size, cheapest, cheapest_as_is
from fulcrum.decide.inputs import Inputs
from fulcrum.decide.pools import PoolBounds, bounds_of
from fulcrum.decide.snapshot import ObservedWorker, live
from fulcrum.decide.tuning import TUNING
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel


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


def size(inputs: Inputs, applied: Mapping[str, int]) -> Sizing:
    """Return the workers to have; `applied`: workers of each pool that the last decision wanted."""
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
    pools = bounds.within(shrink=False)
    lows = {pool.name: pool.low for pool in pools}
    stands = layout_of(worker for worker in workers if worker.serving)
    if not stands.pools <= lows.keys() or any(sum(stands.in_pool(name).values()) != low for name, low in lows.items()):
        stands = Layout()  # workers come, go or drain

    def usual() -> tuple[Layout, ...]:
        return splits(pools, lows, model, load.current)

    present = _needed(pools, model, load.lower, stands, usual)
    over = not present.enough or (
        _said_over(inputs.status) and not _needed(pools, model, load.current, stands, usual).enough
    )
    ahead = _needed(pools, model, load.forecast, stands, usual)
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
    if all(applied[pool.name] <= pool.workers.min for pool in inputs.spec.pools):
        return kept
    enough, best = _bounds(model, usual()[:1], load.trailing_maximum)
    spared = enough + TUNING.spared_misses * (best - enough)
    divided = any(worker.role in (Role.PREFILL, Role.DECODE) for worker in workers if worker.serving)
    smaller = _shrunk(bounds, model, load.trailing_maximum, divided=divided, attainment=spared)
    if smaller is None or sum(smaller.workers.values()) >= sum(applied.values()):
        return kept
    return smaller


def _needed(
    pools: list[PoolBounds],
    model: PerformanceModel,
    load: Load,
    stands: Layout,
    usual: Callable[[], tuple[Layout, ...]],
) -> Size:
    """Return the cheapest size with all that there is; most often what stands is enough, and nothing is searched for.

    `usual`: the best that these workers could be, which is searched for only where what stands is not enough.
    """
    if stands.complete and (load.rate <= 0 or model.attainment(stands, load) >= model.slo.attainment):
        return Size(layout=stands, cost=0.0, enough=True)
    smallest = _smallest(pools)
    if model.admits:
        smallest.append(_everything(pools))
    enough, _ = _bounds(model, smallest, load)
    layouts = usual()
    for layout in (stands, *layouts):
        if layout.complete and (load.rate <= 0 or model.attainment(layout, load) >= enough):
            return Size(layout=layout, cost=0.0, enough=True)
    if layouts and all(pool.high == pool.low for pool in pools):
        return Size(layout=layouts[0], cost=0.0, enough=False)
    return cheapest(pools, model, load, attainment=enough)


def _bounds(model: PerformanceModel, layouts: Iterable[Layout], load: Load) -> tuple[float, float]:
    """Return the share of requests inside the SLO that is enough, and what the best of the layouts reaches when idle.

    Prompts that are too long for the promise on any worker are late with any number of workers. Enough is what is
    promised, but where these alone use up nearly all misses that the promise leaves, the last ones that could be saved
    would take several times the workers.
    """
    promised = model.slo.attainment
    if load.rate <= 0:
        return promised, promised
    idle = load.scaled(1e-6)  # no request waits for another one
    best = max((model.attainment(layout, idle) for layout in layouts), default=promised)
    return min(promised, best - min(TUNING.unhelped_misses * (1 - best), best / 2)), best


def _smallest(pools: Iterable[PoolBounds]) -> list[Layout]:
    """Return the smallest layouts: a worker for each role, of the same pool or of two; or one that does both."""
    there = [pool for pool in pools if pool.high > 0]
    prefill, decode = (
        [pool.name for pool in there if pool.role in (None, role)] for role in (Role.PREFILL, Role.DECODE)
    )
    split = [Layout.of(prefill={one: 1}, decode={other: 1}) for one, other in product(prefill, decode)]
    return split + [Layout.of(mixed={pool.name: 1}) for pool in there if pool.role is Role.MIXED]


def _everything(pools: Iterable[PoolBounds]) -> Layout:
    """Return a worker of every pool in each of its roles: what serves requests that one pool alone does not take."""
    return Layout().plus(
        (pool.name, role, 1)
        for pool in pools
        if pool.high > 0
        for role in ((Role.PREFILL, Role.DECODE) if pool.role is None else (pool.role,))
    )


def _shrunk(bounds: _Pools, model: PerformanceModel, peak: Load, *, divided: bool, attainment: float) -> Sizing | None:
    """Return the cheapest workers that the peak needs in the kind of layout that stands, so that nothing else moves.

    A last worker does both whatever stood before; and mixed workers take a role each where fewer of them then do.
    """
    pools = bounds.within(shrink=True)
    together = [pool.as_mixed() for pool in pools]
    if divided:
        fewest = cheapest_as_is(pools, model, peak, attainment=attainment)
        alone = cheapest_as_is(together, model, peak, attainment=attainment)
        if alone.enough and sum(alone.workers(together).values()) == 1:
            return _fewer(bounds.workers(alone, together), alone, peak)
    else:
        fewest = min(
            (cheapest_as_is(each, model, peak, attainment=attainment) for each in (together, pools)),
            key=lambda found: (not found.enough, found.cost),
        )
    return _fewer(bounds.workers(fewest, pools), fewest, peak) if fewest.enough else None


def _fewer(workers: dict[str, int], found: Size, peak: Load) -> Sizing:
    return Sizing(workers=workers, reason=Reason.LOAD_FELL, considered=((found.layout, peak),))


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
