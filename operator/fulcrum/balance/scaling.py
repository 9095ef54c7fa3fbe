"""How many workers each pool is to have: more at once when the load to come needs it, fewer only after a calm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance.load import DEFAULT_START_SECONDS, Loads
from fulcrum.balance.pools import PoolBounds, bounds_of
from fulcrum.balance.sizing import Size, cheapest, cheapest_as_is
from fulcrum.balance.snapshot import Snapshot
from fulcrum.balance.split import splits
from fulcrum.balance.standing import live
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel

_SPARED: Final = 0.5
"""Share of the misses that queues may add, which those that are left must not use. What is measured never stands still:
without it the next moment would ask for the worker again that this one gave back."""
_BESIDE: Final = 0.25
"""Queues may always add this share of the misses that no number of workers can help, up to half of what is left."""
_NOBODY: Final = 1e-3
"""Requests per second: so few that none waits for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Workers per pool, and why they change."""

    workers: dict[str, int]
    reason: Reason | None = None
    """Why there are to be more or fewer; None: as many as before."""
    over_capacity: bool = False
    """Not even all workers keep the promise for what arrives now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """Bounds of the pools, without workers that take up a place and cannot serve."""

    spec: InferenceClusterSpec
    held: Mapping[str, int]
    broken: Mapping[str, int]
    stuck: frozenset[str]
    """Pools for which no node has room: more Pods would only wait, too."""
    known: frozenset[str]
    """Pools whose speed is known; the others keep what they have."""

    def rooms(self, *, shrink: bool) -> list[PoolBounds]:
        rooms = []
        for pool in self.spec.pools:
            if pool.name not in self.known:
                continue
            usable = self.held[pool.name] - self.broken[pool.name]
            most = usable if shrink or pool.name in self.stuck else pool.workers.max - self.broken[pool.name]
            least = pool.workers.min - self.broken[pool.name] if shrink else usable
            rooms.append(bounds_of(pool, low=max(0, min(least, most)), high=max(0, most)))
        return rooms

    def workers(self, size: Size, rooms: list[PoolBounds]) -> dict[str, int]:
        chosen = size.workers(rooms)
        return {name: chosen[name] + self.broken[name] if name in chosen else self.held[name] for name in self.held}


def scale(
    snapshot: Snapshot,
    now: datetime,
    held: Mapping[str, int],
    *,
    loads: Loads,
    service: PerformanceModel,
    divided: bool,
    was_over: bool,
) -> Scale:
    """Return the workers to have. `divided`: flippable workers have roles now; `was_over`: it was said before."""
    known = frozenset(pool.name for pool in snapshot.spec.pools if service.knows(pool.name))
    pools = _Pools(
        spec=snapshot.spec,
        held=held,
        broken={name: min(count, _broken(snapshot, name, now)) for name, count in held.items()},
        stuck=frozenset(w.pool for w in snapshot.workers if w.unschedulable and not w.deleting),
        known=known,
    )
    rooms = pools.rooms(shrink=False)
    usual = splits(rooms, {room.name: room.low for room in rooms}, service, loads.near)
    present = _needed(rooms, service, loads.least, usual)
    over = not present.enough or (was_over and not _needed(rooms, service, loads.near, usual).enough)
    ahead = _needed(rooms, service, loads.far, usual)
    largest = max((present, ahead), key=lambda size: size.gpus)
    if largest.gpus:
        reason = Reason.LOAD_FORECAST if largest is ahead else Reason.LOAD_SHIFTED
        if largest is present and loads.queued is not None:
            reason = Reason.QUEUE_GROWING
        return Scale(workers=pools.workers(largest, rooms), reason=reason, over_capacity=over)
    kept = Scale(workers=dict(held), over_capacity=over)
    # Whatever the model says: workers are not given back while requests are late, or right after some were asked for.
    if loads.peak is None or over or not loads.kept or _just_asked(snapshot, now):
        return kept
    enough, best = _bounds(service, usual[:1], loads.peak)
    spared = enough + _SPARED * (best - enough)
    smaller = _shrunk(pools, service, loads.peak, divided=divided, attainment=spared)
    if smaller is None or sum(smaller.values()) >= sum(held.values()):
        return kept
    return Scale(workers=smaller, reason=Reason.LOAD_FELL)


def _needed(rooms: list[PoolBounds], service: PerformanceModel, load: Load, usual: tuple[Layout, ...]) -> Size:
    """Return the cheapest size with all that stands; most often that is enough, and then nothing is searched for."""
    enough, _ = _bounds(service, _smallest(rooms), load)
    for layout in usual:
        if load.rate <= 0 or service.attainment(layout, load) >= enough:
            return Size(layout=layout, gpus=0, enough=True)
    if usual and all(room.high == room.low for room in rooms):
        return Size(layout=usual[0], gpus=0, enough=False)
    return cheapest(rooms, service, load, attainment=enough)


def _bounds(service: PerformanceModel, layouts: Iterable[Layout], load: Load) -> tuple[float, float]:
    """Return the share of requests inside the SLO that is enough, and what the best of the layouts reaches when idle.

    Prompts that are too long for the promise on any worker are late with any number of workers. Enough is what is
    promised, but where these alone use up nearly all misses that the promise leaves, the last ones that could be saved
    would take several times the workers.
    """
    promised = service.slo.attainment
    if load.rate <= 0:
        return promised, promised
    idle = load.scaled(_NOBODY / load.rate)
    best = max((service.attainment(layout, idle) for layout in layouts), default=promised)
    return min(promised, best - min(_BESIDE * (1 - best), best / 2)), best


def _smallest(rooms: Iterable[PoolBounds]) -> list[Layout]:
    """Return the smallest layouts: a worker for each role, of the same pool or of two; or one that does both."""
    there = [room for room in rooms if room.high > 0]
    prefill, decode = (
        [room.name for room in there if room.role in (None, role)] for role in (Role.PREFILL, Role.DECODE)
    )
    split = [Layout.of(prefill={one: 1}, decode={other: 1}) for one, other in product(prefill, decode)]
    return split + [Layout.of(mixed={room.name: 1}) for room in there if room.role is Role.MIXED]


def _shrunk(
    pools: _Pools, service: PerformanceModel, peak: Load, *, divided: bool, attainment: float
) -> dict[str, int] | None:
    """Return the fewest workers that the peak needs in the kind of layout that stands, so that nothing else moves.

    A last worker does both whatever stood before; and mixed workers take a role each where fewer of them then do.
    """
    rooms = pools.rooms(shrink=True)
    together = [room.as_mixed() for room in rooms]
    if divided:
        size = cheapest_as_is(rooms, service, peak, attainment=attainment)
        alone = cheapest_as_is(together, service, peak, attainment=attainment)
        if alone.enough and sum(alone.workers(together).values()) == 1:
            return pools.workers(alone, together)
    else:
        size = min(
            (cheapest_as_is(each, service, peak, attainment=attainment) for each in (together, rooms)),
            key=lambda found: (not found.enough, sum(found.workers(rooms).values())),
        )
    return pools.workers(size, rooms) if size.enough else None


def _just_asked(snapshot: Snapshot, now: datetime) -> bool:
    """Tell whether a worker was created within `balance.scaleDown.stabilization`."""
    since = now - timedelta(seconds=seconds(snapshot.spec.balance.scale_down.stabilization))
    return any(worker.created is not None and worker.created > since for worker in snapshot.workers)


def _broken(snapshot: Snapshot, pool: str, now: datetime) -> int:
    """Count workers that take up a place and will not serve soon: a node that takes as long as usual may still come."""
    since = now - timedelta(seconds=snapshot.outlook.start_seconds or DEFAULT_START_SECONDS)
    return sum(
        1
        for worker in live(snapshot, pool)
        if worker.engine_failed or (worker.unschedulable and (worker.created is None or worker.created <= since))
    )
