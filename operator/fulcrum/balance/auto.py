"""Modes Auto and Observe: from what is known to who does what. Without knowledge, what stands is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdmissionPolicy, BalanceMode, ConditionStatus, ConditionType, FlipStyle
from fulcrum.balance.assignment import Assignment, assign
from fulcrum.balance.beginning import first_layout
from fulcrum.balance.choice import Choice, Insight, Reasons
from fulcrum.balance.correction import corrected
from fulcrum.balance.flips import DRAIN_COST, IMMEDIATE_COST, Move, Stakes, after, paying_moves
from fulcrum.balance.load import Loads, Unknown, read_loads
from fulcrum.balance.placing import Kept, keep, layout_of, layout_of_places, place, roles_after
from fulcrum.balance.pools import PoolBounds, bounds_of, only_role
from fulcrum.balance.scaling import Scale, scale
from fulcrum.balance.snapshot import Snapshot, Worker
from fulcrum.balance.split import splits
from fulcrum.balance.standing import standing_workers
from fulcrum.balance.target import Target, make_target
from fulcrum.load.demand import Slo, promised
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel, reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known about one cluster: enough to decide by."""

    snapshot: Snapshot
    now: datetime
    loads: Loads
    service: PerformanceModel
    flips_service: PerformanceModel
    promise: Slo
    """The SLO of the spec. That of `service` is wider where no hardware at hand keeps it, beyond doubt; that of
    `flips_service` where none does for what was measured: else every split would look equally bad."""
    corrected: bool

    @property
    def rooms(self) -> list[PoolBounds]:
        return [
            bounds_of(pool, low=pool.workers.min, high=pool.workers.max)
            for pool in self.snapshot.spec.pools
            if self.service.knows(pool.name)
        ]

    @property
    def reason(self) -> Reason:
        """What most of all makes the near load what it is."""
        if self.corrected:
            return Reason.ATTAINMENT_FALLING
        if self.loads.queued is not None:
            return Reason.QUEUE_GROWING
        return Reason.LOAD_FORECAST if self.loads.forecast_leads else Reason.LOAD_SHIFTED


def choose(snapshot: Snapshot, now: datetime) -> Choice:
    """Return what is to be done in modes Auto and Observe."""
    held = standing_workers(snapshot)
    sight = look(snapshot, now)
    observing = snapshot.spec.balance.mode is BalanceMode.OBSERVE
    if isinstance(sight, Unknown):
        choice = hold(snapshot, held, now, repair=not observing)
        return replace(choice, insight=replace(choice.insight, unknown=sight.message))
    decided = _decide(sight, held)
    if not observing:
        return decided
    standing = hold(snapshot, held, now, repair=False)
    return replace(standing, insight=decided.insight, proposal=decided)


def look(snapshot: Snapshot, now: datetime) -> Sight | Unknown:
    """Gather what a decision needs; Unknown names the first thing that is missing."""
    spec, outlook = snapshot.spec, snapshot.outlook
    speeds = {pool.name: outlook.speeds[pool.name] for pool in spec.pools if pool.name in outlook.speeds}
    used = {worker.pool for worker in snapshot.workers}
    missing = [pool.name for pool in spec.pools if pool.name not in speeds and pool.name in used]
    if missing or not speeds:
        names = ", ".join(missing or [pool.name for pool in spec.pools])
        return Unknown(message=f"Nobody knows yet how fast the workers of pool {names} are.")
    slo = promised(spec)
    loads = read_loads(outlook, snapshot.workers, slo, payback_seconds=payback_seconds(snapshot))
    if isinstance(loads, Unknown):
        return loads
    turns_away = spec.admission.policy is not AdmissionPolicy.OFF
    service = PerformanceModel(speeds, reachable(speeds, slo, loads.least), turns_away=turns_away)
    near_slo = reachable(speeds, slo, loads.near)
    flips_service = service if near_slo == service.slo else PerformanceModel(speeds, near_slo, turns_away=turns_away)
    more = corrected(snapshot, now, loads, service, slo)
    return Sight(
        snapshot=snapshot,
        now=now,
        loads=more or loads,
        service=service,
        flips_service=flips_service,
        promise=slo,
        corrected=more is not None,
    )


def payback_seconds(snapshot: Snapshot) -> float:
    """Return how long a flip may take to pay for itself: its dwell, or without one as long as the load was watched."""
    dwell = seconds(snapshot.spec.balance.flip.min_dwell)
    traffic = snapshot.outlook.traffic
    return dwell if dwell > 0 else max(traffic.window_seconds if traffic is not None else 0.0, 1.0)


def _decide(sight: Sight, held: Mapping[str, int]) -> Choice:
    snapshot, loads, service = sight.snapshot, sight.loads, sight.service
    divided = any(worker.role in (Role.PREFILL, Role.DECODE) for worker in snapshot.workers if worker.serving)
    scaled = scale(
        snapshot, sight.now, held, loads=loads, service=service, divided=divided, was_over=_said_over(snapshot)
    )
    goal = _goal(sight, scaled)
    kept = keep(snapshot, scaled.workers, goal)
    if _forces_early_flip(sight, scaled, kept):
        scaled = replace(scaled, workers=dict(held), reason=None)
        goal = _goal(sight, scaled)
        kept = keep(snapshot, scaled.workers, goal)
    coming = _coming(snapshot, scaled.workers, kept, goal)
    moves, reason = _moves(sight, kept, coming)
    movable = frozenset(w.name for w in (kept.serving if reason is Reason.ROLE_EMPTY else _dwelled(sight, kept)))
    assignment = _assign(snapshot, scaled.workers, kept, goal, moves=moves, movable=movable, coming=coming)
    target = _target(snapshot, scaled.workers, assignment)
    expected = PerformanceModel(snapshot.outlook.speeds, sight.promise)
    serving = [(s.pool, s.role) for s in assignment.slots if s.worker is not None and s.worker.serving]
    result = layout_of_places(serving) if serving else goal
    known = all(expected.knows(pool) for pool in result.pools)
    insight = Insight(
        attainment=expected.attainment(result, loads.near) if loads.near.rate > 0 and known else None,
        reason=reason or scaled.reason,
        over_capacity=scaled.over_capacity,
        unreachable=service.slo != sight.promise,
        near=loads.near,
        far=loads.far,
    )
    grown = sum(scaled.workers.values()) > sum(held.values())
    reasons = Reasons(
        flip=reason or scaled.reason or Reason.ROLE_FLIPPED,
        create=(scaled.reason if grown else None) or Reason.WORKER_CREATED,
        drain=(scaled.reason if not grown else None) or Reason.WORKER_DRAINING,
        load=str(loads.near) if reason not in (None, Reason.ROLE_EMPTY) else "",
    )
    return Choice(target=target, assignment=assignment, reasons=reasons, insight=insight)


def _goal(sight: Sight, scaled: Scale) -> Layout:
    """Return the roles that all workers together would best have; for places that have none yet."""
    snapshot, loads = sight.snapshot, sight.loads
    live = [w for w in snapshot.workers if not w.deleting and not w.ended]
    placed = Counter(w.pool for w in live if w.role is not Role.DRAINING)
    if scaled.workers == {pool: placed[pool] for pool in scaled.workers}:
        return layout_of(snapshot.workers)  # nobody comes or goes
    there = Counter(w.pool for w in live)
    desired = sum(counts.desired for counts in snapshot.status.roles.values())
    if scaled.workers == {pool: there[pool] for pool in scaled.workers} and desired == sum(scaled.workers.values()):
        # Who drains only to change its role gets the one it was told to drain for. Meanwhile the load cannot be judged
        # as it was then: what is measured during a change corrects nothing.
        return _held_layout(snapshot, scaled.workers)
    ahead = loads.near if scaled.reason is Reason.LOAD_FELL else loads.near.at_least(loads.far)
    found = splits(sight.rooms, scaled.workers, sight.service, ahead) if ahead.rate > 0 else ()
    if found:
        return found[0]
    # Nobody asks for anything: what stands is held, and fewer workers begin anew.
    held = scaled.reason is None
    return _held_layout(snapshot, scaled.workers) if held else _first_layout(snapshot, scaled.workers)


def _coming(snapshot: Snapshot, workers: Mapping[str, int], kept: Kept, goal: Layout) -> dict[str, Role]:
    """Return the role that each worker that drains, and stays, gets afterwards; by name."""
    if not any(worker.role is Role.DRAINING for worker in kept.workers):
        return {}
    assignment = _assign(snapshot, workers, kept, goal, moves=(), movable=frozenset())
    return {worker.name: role for worker, role in assignment.kept if worker.role is Role.DRAINING}


def _moves(sight: Sight, kept: Kept, coming: Mapping[str, Role]) -> tuple[tuple[Move, ...], Reason | None]:
    """Return the flips of serving workers of flippable pools, with their reason.

    Those that drain count by the role that they get (`coming`): nobody else flips for what they are about to do.
    """
    snapshot = sight.snapshot
    repair = _repair(snapshot, kept, sight.now)
    if repair:
        return repair, Reason.ROLE_EMPTY
    there = [worker for worker in kept.workers if worker.serving or worker.name in coming]
    standing = layout_of_places((worker.pool, coming.get(worker.name, worker.role)) for worker in there)
    movable = _movable(sight, kept)
    paying = paying_moves(
        sight.rooms,
        standing,
        movable,
        loads=sight.loads,
        service=sight.flips_service,
        stakes=Stakes(
            payback_seconds=payback_seconds(snapshot),
            cost_workers=IMMEDIATE_COST if snapshot.spec.balance.flip.style is FlipStyle.IMMEDIATE else DRAIN_COST,
        ),
    )
    if paying:
        return paying, sight.reason
    return _tidied(sight, standing, movable), None


def _tidied(sight: Sight, standing: Layout, movable: Counter[tuple[str, Role]]) -> tuple[Move, ...]:
    """A worker that does both beside workers that do not was a stopgap: it takes one role again."""
    if not (standing.prefill or standing.decode):
        return ()
    stopgaps = [pool for (pool, role), count in movable.items() if role is Role.MIXED and count]
    options = [Move(pool, Role.MIXED, role) for pool in sorted(stopgaps)[:1] for role in (Role.PREFILL, Role.DECODE)]
    complete = [move for move in options if after(standing, [move]).complete]
    if not complete:
        return ()
    return (max(complete, key=lambda move: sight.service.goodput(after(standing, [move]), sight.loads.near)),)


def _repair(snapshot: Snapshot, kept: Kept, now: datetime) -> tuple[Move, ...]:
    """A role that nobody serves any more is taken over at once: by one of several workers, or by an only one with both.

    A cluster that has just started is not broken: its other workers come, too.
    """
    if layout_of(worker for worker in snapshot.workers if worker.serving).complete:
        return ()
    standing = layout_of(kept.serving)
    flexible = {pool.name for pool in snapshot.spec.pools if only_role(pool) is None}
    settled = timedelta(seconds=seconds(snapshot.spec.balance.flip.min_dwell))
    able = [
        worker
        for worker in kept.serving
        if worker.pool in flexible and (worker.ready_since is None or now - worker.ready_since >= settled)
    ]
    if not able:
        return ()
    chosen = able[-1]
    # Nobody waits for a drain while requests have nowhere to go: then, too, one does both for the time being.
    immediate = snapshot.spec.balance.flip.style is FlipStyle.IMMEDIATE
    missing = Role.DECODE if standing.prefill else Role.PREFILL
    return (Move(chosen.pool, chosen.role, missing if immediate and standing.total > 1 else Role.MIXED),)


def hold(snapshot: Snapshot, held: Mapping[str, int], now: datetime, *, repair: bool) -> Choice:
    """Keep what stands and replace what died; a cluster with nothing at all starts small, in Observe as in Manual."""
    if not repair and not snapshot.workers and not snapshot.status.roles:
        target = make_target(snapshot.spec)
        return Choice(target=target, assignment=assign(snapshot, target))
    goal = _held_layout(snapshot, held)
    kept = keep(snapshot, held, goal)
    moves = _repair(snapshot, kept, now) if repair else ()
    assignment = _assign(snapshot, held, kept, goal, moves=moves, movable=frozenset(w.name for w in kept.serving))
    reasons = Reasons(flip=Reason.ROLE_EMPTY if moves else Reason.ROLE_FLIPPED)
    return Choice(target=_target(snapshot, held, assignment), assignment=assignment, reasons=reasons)


def _first_layout(snapshot: Snapshot, workers: Mapping[str, int]) -> Layout:
    return first_layout(snapshot.spec, workers, snapshot.outlook.speeds)


def _held_layout(snapshot: Snapshot, held: Mapping[str, int]) -> Layout:
    """Return the roles of the last decision, as far as the status says them; else those that the spec begins with."""
    desired = {role: counts.desired for role, counts in snapshot.status.roles.items()}
    if not sum(desired.values()):
        return _first_layout(snapshot, held)
    counts: dict[Role, dict[str, int]] = {Role.PREFILL: {}, Role.DECODE: {}, Role.MIXED: {}}
    for pool in sorted(snapshot.spec.pools, key=lambda pool: only_role(pool) is None):
        left = held[pool.name]
        fixed = only_role(pool)
        have = Counter(w.role for w in snapshot.in_pool(pool.name) if not w.deleting and not w.ended)
        for role in counts if fixed is None else (fixed,):
            taken = left if fixed is not None else min(left, max(have[role], 0))
            counts[role][pool.name] = taken
            left -= taken
            desired[role] = desired.get(role, 0) - taken
        for _ in range(left):
            role = max(counts, key=lambda role: desired.get(role, 0))
            counts[role][pool.name] = counts[role].get(pool.name, 0) + 1
            desired[role] = desired.get(role, 0) - 1
    return Layout.of(prefill=counts[Role.PREFILL], decode=counts[Role.DECODE], mixed=counts[Role.MIXED])


def _assign(
    snapshot: Snapshot,
    workers: Mapping[str, int],
    kept: Kept,
    goal: Layout,
    *,
    moves: tuple[Move, ...],
    movable: frozenset[str],
    coming: Mapping[str, Role] | None = None,
) -> Assignment:
    roles = roles_after(kept.serving, moves, movable) | dict(coming or {})
    roles |= {w.name: w.role for w in kept.workers if not w.serving and w.role is not Role.DRAINING}
    return place(snapshot, workers, kept, roles, goal)


def _target(snapshot: Snapshot, workers: Mapping[str, int], assignment: Assignment) -> Target:
    fixed = {pool.name: role for pool in snapshot.spec.pools if (role := only_role(pool)) is not None}
    return Target(workers=dict(workers), fixed=fixed, roles=Counter(slot.role for slot in assignment.slots))


def _forces_early_flip(sight: Sight, scaled: Scale, kept: Kept) -> bool:
    """A last worker takes both roles; when it has just flipped, the others stay until it may flip again."""
    if scaled.reason is not Reason.LOAD_FELL or sum(scaled.workers.values()) != 1:
        return False
    settled = {worker.uid for worker in _dwelled(sight, kept)}
    return any(worker.role is not Role.MIXED and worker.uid not in settled for worker in kept.serving)


def _movable(sight: Sight, kept: Kept) -> Counter[tuple[str, Role]]:
    flexible = {pool.name for pool in sight.snapshot.spec.pools if only_role(pool) is None}
    return Counter((worker.pool, worker.role) for worker in _dwelled(sight, kept) if worker.pool in flexible)


def _dwelled(sight: Sight, kept: Kept) -> list[Worker]:
    """Return the serving workers that have had their role for the dwell time."""
    since = sight.now - timedelta(seconds=seconds(sight.snapshot.spec.balance.flip.min_dwell))
    return [worker for worker in kept.serving if worker.role_since is None or worker.role_since <= since]


def _said_over(snapshot: Snapshot) -> bool:
    return any(
        c.type is ConditionType.DEGRADED and c.status is ConditionStatus.TRUE and c.reason is Reason.OVER_CAPACITY
        for c in snapshot.status.conditions
    )
