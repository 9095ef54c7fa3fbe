"""Which serving workers change their role now: to take over an empty one, to serve more, or back from a stopgap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from math import inf

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import FlipStyle, InferenceClusterSpec
from fulcrum.decide.assign import Kept, layout_of, layout_of_places
from fulcrum.decide.inputs import Inputs, LoadEstimate
from fulcrum.decide.pools import flippable
from fulcrum.decide.rehearsed import Rehearsed, Wanted
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.decide.split import Move, after, moves_between, possible_moves
from fulcrum.load.demand import Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanges:
    """The flips of a decision."""

    moves: tuple[Move, ...] = ()
    reason: Reason | None = None
    """None: the load does not ask for them."""
    movable: frozenset[str] = frozenset()
    """Names of the workers that may be the ones."""
    current: Layout = field(default_factory=Layout)
    """What they are compared with."""
    wanted: Wanted | None = None
    """What is to be rehearsed; None: nothing, or there are no rehearsals."""
    rehearsed: Rehearsed | None = None
    """What was rehearsed for what stands."""


def role_changes(inputs: Inputs, kept: Kept, coming: Mapping[str, Role]) -> RoleChanges:
    """Return the flips of serving workers of flippable pools.

    Draining workers count by the role that they get (`coming`): no other worker flips for what they are about to do.
    """
    repair = repairs(inputs.spec, inputs.workers, kept, inputs.now)
    if repair:
        movable = frozenset(worker.name for worker in kept.serving)
        return RoleChanges(moves=repair, reason=Reason.ROLE_EMPTY, movable=movable)
    settled = dwelled(inputs, kept)
    there = [worker for worker in kept.workers if worker.serving or worker.name in coming]
    current = layout_of_places((worker.pool, coming.get(worker.name, worker.role)) for worker in there)
    flexible = flippable(inputs.spec.pools)
    able = Counter((worker.pool, worker.role) for worker in settled if worker.pool in flexible)
    if inputs.measurements.rehearses:
        changes = RoleChanges(movable=frozenset(worker.name for worker in settled), current=current)
        return _by_rehearsal(inputs, kept, coming, changes, able)
    moves = to_short_role(current, able, load=inputs.load, model=inputs.model)
    return RoleChanges(
        moves=moves or _single_role(inputs, current, able),
        reason=inputs.reason if moves else None,
        movable=frozenset(worker.name for worker in settled),
        current=current,
    )


def to_short_role(
    current: Layout, movable: Counter[tuple[str, Role]], *, load: LoadEstimate, model: FluidModel
) -> tuple[Move, ...]:
    """Return the flips to the role that cannot carry what surely comes, as far as the other one can spare workers.

    `current` are the workers that serve, `movable` how many of them may flip now (dwell), by pool and role. Rates of
    workers know of no queue and of nothing that is late. So only what is beyond doubt counts: the short role has the
    least work that it may have, and the other one the most.
    """
    if load.lower.rate <= 0 or not current.complete or current.mixed:
        return ()
    short, other = sorted((Role.PREFILL, Role.DECODE), key=lambda role: -_use(current, role, load.lower, model))
    if other is Role.DECODE and load.answers_at_least:
        return ()  # decode may get far more work than answers under way tell
    doubt = replace(load.lower, decode=load.upper.decode)
    if short is Role.DECODE:
        doubt = replace(load.lower, prefill=load.upper.prefill)
    if _use(current, short, doubt, model) <= 1:
        return ()

    def busiest(moves: Sequence[Move]) -> float:
        layout = after(current, moves)
        return max(_use(layout, role, doubt, model) for role in (short, other))

    givers = (pool for pool, role in movable.elements() if role is other)
    moves: list[Move] = []
    for pool in sorted(givers, key=lambda pool: -model.advantage(pool, short, doubt)):
        further = [*moves, Move(pool, other, short)]
        if busiest(further) >= busiest(moves):
            break
        moves = further
    return tuple(moves)


def _use(layout: Layout, role: Role, load: Load, model: FluidModel) -> float:
    """Return the work of a role over what its workers carry."""
    demand = load.prefill if role is Role.PREFILL else load.decode
    carried = model.role_rate(layout, load, role)
    return demand.rate / carried if carried > 0 else inf


def _by_rehearsal(
    inputs: Inputs, kept: Kept, coming: Mapping[str, Role], changes: RoleChanges, able: Counter[tuple[str, Role]]
) -> RoleChanges:
    """Return `changes` with the flips that a rehearsal chose for just these workers, and what is to be rehearsed."""
    current, flexible = changes.current, flippable(inputs.spec.pools)
    mixes = all(pool.mixes for pool in inputs.pools if pool.name in flexible)
    key = _state_key(inputs, kept.serving, (sorted(flexible), mixes))
    rehearsed = inputs.measurements.rehearsed
    if rehearsed is not None and rehearsed.key == key and rehearsed.leads_through(current):
        possible = possible_moves(moves_between(sorted(flexible), current, rehearsed.chosen), able)
        changes = replace(changes, moves=possible, reason=inputs.reason if possible else None, rehearsed=rehearsed)
        if rehearsed.chosen != current:
            return changes  # some of it waits for its dwell
    # Where most workers do both that is no stopgap: it was chosen.
    if current.count(Role.MIXED) * 2 < current.total and (single := _single_role(inputs, current, able)):
        return replace(changes, moves=single)
    changing = {worker.name for worker in kept.serving if worker.pool in flexible}
    settled = changing <= changes.movable and not coming and current.complete and len(changing) > 1
    if not settled or inputs.well:
        return changes
    began = [at for worker in kept.serving for at in (worker.role_since, worker.ready_since) if at is not None]
    stands_since = max(began, default=None)
    wanted = Wanted(key=key, standing=current, flexible=flexible, mixes=mixes, stands_since=stands_since)
    return replace(changes, wanted=wanted)


def _state_key(inputs: Inputs, workers: Iterable[ObservedWorker], changes: object) -> str:
    """Return a key that other workers or revisions do not have, nor another promise, admission or kind of change, nor
    pools that admit other requests."""
    state = sorted((worker.uid, worker.restarts, worker.stale) for worker in workers)
    admits = sorted(
        (pool.name, pool.admits.min_prompt_tokens, pool.admits.max_prompt_tokens, sorted(pool.admits.classes))
        for pool in inputs.spec.pools
        if pool.admits is not None
    )
    asked = (state, inputs.promise, inputs.spec.admission, changes, *([admits] if admits else []))
    return sha256(repr(asked).encode()).hexdigest()[:16]


def dwelled(inputs: Inputs, kept: Kept) -> list[ObservedWorker]:
    """Return the serving workers that have had their role for the dwell time."""
    since = inputs.now - timedelta(seconds=seconds(inputs.spec.balance.flip.min_dwell))
    return [worker for worker in kept.serving if worker.role_since is None or worker.role_since <= since]


def repairs(
    spec: InferenceClusterSpec, workers: Iterable[ObservedWorker], kept: Kept, now: datetime
) -> tuple[Move, ...]:
    """Return the flip by which a role that no worker serves is taken over; an only worker does both.

    A cluster that has just started is not broken: its other workers come, too.
    """
    if layout_of(worker for worker in workers if worker.serving).complete:
        return ()
    settled, flexible = timedelta(seconds=seconds(spec.balance.flip.min_dwell)), flippable(spec.pools)
    able = [w for w in kept.serving if w.pool in flexible and (w.ready_since is None or now - w.ready_since >= settled)]
    if not able:
        return ()
    current, chosen = layout_of(kept.serving), able[-1]
    # A drain would leave requests without a worker: then, too, one does both for the time being.
    immediate = spec.balance.flip.style is FlipStyle.IMMEDIATE
    missing = Role.DECODE if current.prefill else Role.PREFILL
    return (Move(chosen.pool, chosen.role, missing if immediate and current.total > 1 else Role.MIXED),)


def _single_role(inputs: Inputs, current: Layout, able: Counter[tuple[str, Role]]) -> tuple[Move, ...]:
    """Return a temporary `mixed` worker, beside workers of one role, to a single role."""
    stopgap = min((pool for (pool, role), count in able.items() if role is Role.MIXED and count), default=None)
    if stopgap is None or not (current.prefill or current.decode):
        return ()
    options = [Move(stopgap, Role.MIXED, role) for role in (Role.PREFILL, Role.DECODE)]
    complete = [move for move in options if after(current, [move]).complete]
    if not complete:
        return ()
    return (max(complete, key=lambda move: inputs.model.room(after(current, [move]), inputs.load.current)),)
