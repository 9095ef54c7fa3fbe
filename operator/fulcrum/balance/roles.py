"""Which serving workers change their role now: to take over an empty one, because it pays, or back from a stopgap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import FlipStyle, InferenceClusterSpec
from fulcrum.balance.assign import Kept, layout_of, layout_of_places
from fulcrum.balance.inputs import Inputs, payback_seconds
from fulcrum.balance.pools import flippable
from fulcrum.balance.snapshot import ObservedWorker
from fulcrum.balance.split import Considered, Move, Stakes, after, split
from fulcrum.balance.tuning import TUNING
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
    considered: tuple[Considered, ...] = ()


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
    immediate = inputs.spec.balance.flip.style is FlipStyle.IMMEDIATE
    flips = split(
        inputs.pools,
        current,
        able,
        load=inputs.load,
        model=inputs.flips_model,
        stakes=Stakes(
            payback_seconds=payback_seconds(inputs.spec, inputs.measurements.traffic),
            fails=immediate and inputs.load.fails,
            # By style Drain the whole worker is away: nothing new arrives until its old work is done.
            cost_workers=TUNING.immediate_cost if immediate else 1.0,
        ),
    )
    return RoleChanges(
        moves=flips.moves or _single_role(inputs, current, able),
        reason=inputs.reason if flips.moves else None,
        movable=frozenset(worker.name for worker in settled),
        current=current,
        considered=flips.considered,
    )


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
    return (max(complete, key=lambda move: inputs.model.goodput(after(current, [move]), inputs.load.current)),)
