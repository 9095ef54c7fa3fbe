"""Stage `assign`: a decision laid over the workers. Which stay, which go, and which role each place has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.pools import flippable, only_role
from fulcrum.decide.replacements import Rollout
from fulcrum.decide.snapshot import ObservedWorker, live, roles_served, served_roles
from fulcrum.decide.split import Move
from fulcrum.performance.layout import ROLES, Layout


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One place in the target: a worker that stays, or one that is missing. Thousands are made for each plan."""

    pool: str
    ordinal: int
    role: Role
    worker: ObservedWorker | None = None


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The target, worker by worker. What several steps read of thousands of places is found once."""

    slots: tuple[Slot, ...]
    surplus: tuple[ObservedWorker, ...]
    """Workers that the target has no place for and that are not yet going."""
    rollout: Rollout = field(default_factory=Rollout)
    sleepers: tuple[ObservedWorker, ...] = ()
    """Workers that stay, and whose engines are to sleep."""

    @cached_property
    def kept(self) -> tuple[tuple[ObservedWorker, Role], ...]:
        """Workers that stay, each with the role it is to have."""
        return tuple((slot.worker, slot.role) for slot in self.slots if slot.worker is not None)

    @cached_property
    def counts(self) -> Counter[Role]:
        """Places by role."""
        return Counter(slot.role for slot in self.slots)

    @cached_property
    def places(self) -> Mapping[str, Sequence[Slot]]:
        """Places by pool."""
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            found.setdefault(slot.pool, []).append(slot)
        return found

    @property
    def needed(self) -> frozenset[Role]:
        """Kinds of work that the target has places for."""
        return frozenset[Role]().union(*(roles_served(role) for role in self.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Workers that stay and workers that go."""

    workers: tuple[ObservedWorker, ...]
    surplus: tuple[ObservedWorker, ...]

    @property
    def serving(self) -> tuple[ObservedWorker, ...]:
        """Workers that stay and that requests are sent to."""
        return tuple(worker for worker in self.workers if worker.serving)


def keep(workers: Sequence[ObservedWorker], counts: Mapping[str, int], goal: Layout) -> Kept:
    """Choose which workers stay. Draining workers go first, then not-ready ones, then those of a role with too many."""
    kept: list[ObservedWorker] = []
    surplus = [w for w in workers if w.pool not in counts and w.live]
    for pool, count in counts.items():
        here = live(workers, pool)
        leaving = _leaving(here, len(here) - count, goal.in_pool(pool))
        gone = {worker.uid for worker in leaving}
        surplus += leaving
        kept += [worker for worker in here if worker.uid not in gone]
    return Kept(workers=tuple(kept), surplus=tuple(surplus))


def _leaving(workers: tuple[ObservedWorker, ...], number: int, wanted: Mapping[Role, int]) -> list[ObservedWorker]:
    if number <= 0:
        return []
    idle = [worker for worker in workers if worker.role is Role.DRAINING or not worker.ready]
    idle.sort(key=lambda worker: (worker.role is not Role.DRAINING, -worker.ordinal))
    leaving = idle[:number]
    gone = {worker.uid for worker in idle}
    serving = {role: [w for w in workers if w.role is role and w.uid not in gone] for role in ROLES}
    while len(leaving) < number:
        role = max(
            (each for each in ROLES if serving[each]),
            key=lambda each: (len(serving[each]) - wanted.get(each, 0), serving[each][-1].ordinal),
        )
        leaving.append(serving[role].pop())
    return leaving


def layout_of(workers: Iterable[ObservedWorker]) -> Layout:
    """Return the layout of workers by the roles that they have."""
    return layout_of_places((worker.pool, worker.role) for worker in workers)


def layout_of_places(places: Iterable[tuple[str, Role]]) -> Layout:
    """Return the layout of (pool, role) of each worker; draining workers are left out."""
    return Layout().plus((pool, role, 1) for pool, role in places if role in ROLES)


def roles_after(workers: Iterable[ObservedWorker], moves: Iterable[Move], movable: frozenset[str]) -> dict[str, Role]:
    """Return the role of each worker by name after the moves; of workers that are alike the highest ordinal moves."""
    left = Counter((move.pool, move.from_role, move.role) for move in moves)
    roles: dict[str, Role] = {}
    for worker in sorted(workers, key=lambda w: (w.pool, -w.ordinal)):
        open_moves = (role for role in ROLES if left[worker.pool, worker.role, role] > 0)
        role = next(open_moves, worker.role) if worker.name in movable else worker.role
        left[worker.pool, worker.role, role] -= 1
        roles[worker.name] = role
    return roles


def follow(
    spec: InferenceClusterSpec,
    workers: Sequence[ObservedWorker],
    goal: Layout,
    *,
    resting_since: datetime | None = None,
) -> Assignment:
    """Lay a goal that does not come from the load over the workers, with the fewest flips (modes Manual and External).

    Workers whose role changed after `resting_since` keep it.
    """
    counts = {pool.name: sum(goal.in_pool(pool.name).values()) for pool in spec.pools}
    kept = keep(workers, counts, goal)
    assignment = place(spec, counts, kept, _keeping_roles(kept, goal, resting_since), goal)
    return replace(assignment, slots=_take_over_empty_role(assignment.slots, flippable(spec.pools)))


def _keeping_roles(kept: Kept, goal: Layout, resting_since: datetime | None) -> dict[str, Role]:
    """Return the role of each worker that keeps its own: because its pool needs it, or it was changed just now.

    Serving workers keep theirs before workers that do not serve yet. The others, draining and new ones get what is
    left, in the order of their places.
    """
    roles: dict[str, Role] = {}
    gaps = {pool: Counter(goal.in_pool(pool)) for pool in {worker.pool for worker in kept.workers}}

    def rests(worker: ObservedWorker) -> bool:
        return resting_since is not None and worker.role_since is not None and worker.role_since > resting_since

    for worker in sorted(kept.workers, key=lambda w: (not rests(w), not w.serving, w.pool, w.ordinal)):
        if worker.role is not Role.DRAINING and (rests(worker) or gaps[worker.pool][worker.role] > 0):
            roles[worker.name] = worker.role
            gaps[worker.pool][worker.role] -= 1
    return roles


def _take_over_empty_role(slots: tuple[Slot, ...], flexible: frozenset[str]) -> tuple[Slot, ...]:
    """Give a role whose worker is gone to a serving worker of the other role, where that has two or more.

    The replacement gets the other role: a flip takes moments, and a start can take minutes.
    """
    served = served_roles(slot.worker for slot in slots if slot.worker is not None)
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        of_role, of_other = ([s for s in slots if s.pool in flexible and s.role is each] for each in (role, other))
        vacant = [slot for slot in of_role if slot.worker is None]
        able = [slot for slot in of_other if slot.worker is not None and other in slot.worker.serves]
        if role not in served and vacant and len(able) > 1:
            return tuple(_with_role(s, role if s is able[-1] else other if s is vacant[0] else s.role) for s in slots)
    return slots


def _with_role(slot: Slot, role: Role) -> Slot:
    return slot if slot.role is role else msgspec.structs.replace(slot, role=role)


def place(
    spec: InferenceClusterSpec, counts: Mapping[str, int], kept: Kept, roles: Mapping[str, Role], goal: Layout
) -> Assignment:
    """Return the places with their workers: the role in `roles`, and for the others what `goal` lacks."""
    slots: list[Slot] = []
    fixed = {pool.name: only_role(pool) for pool in spec.pools}
    for pool, count in counts.items():
        here = {worker.ordinal: worker for worker in kept.workers if worker.pool == pool}
        free = [n for n in range(len(here) + count) if n not in here][: count - len(here)]
        gaps = Counter(goal.in_pool(pool))
        gaps.subtract(roles[worker.name] for worker in here.values() if worker.name in roles)
        for ordinal in sorted([*here, *free]):
            worker = here.get(ordinal)
            role = fixed[pool]
            if role is None and worker is not None:
                role = roles.get(worker.name)
            if role is None:
                role = max(ROLES, key=lambda each: gaps[each] > 0)  # prefill first
                gaps[role] -= 1
            slots.append(Slot(pool=pool, ordinal=ordinal, role=role, worker=worker))
    return Assignment(slots=_complete(slots, fixed), surplus=kept.surplus)


def _complete(slots: list[Slot], fixed: Mapping[str, Role | None]) -> tuple[Slot, ...]:
    """Leave no role without a place: one that does not serve yet takes it, else one takes both roles."""
    roles = {slot.role for slot in slots}
    lacking = {Role.PREFILL, Role.DECODE} - roles
    flexible = [index for index, slot in enumerate(slots) if fixed[slot.pool] is None]
    if Role.MIXED in roles or not lacking or not flexible:
        return tuple(slots)
    idle = [index for index in flexible if (worker := slots[index].worker) is None or not worker.serving]
    chosen = (idle or flexible)[-1]
    role = lacking.pop() if len(slots) > 1 and idle and len(lacking) == 1 else Role.MIXED
    slots[chosen] = _with_role(slots[chosen], role)
    return tuple(slots)
