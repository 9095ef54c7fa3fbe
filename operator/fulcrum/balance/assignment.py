"""Which worker goes, which stays and in which role: the target's counts laid over the workers that exist."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from fulcrum.api.names import Role, worker_name
from fulcrum.balance.rollout import Surge
from fulcrum.balance.snapshot import Snapshot, Worker, served_roles
from fulcrum.balance.target import Target


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One place in the target: a worker that stays, or one that is missing. Thousands are made for each plan."""

    pool: str
    ordinal: int
    role: Role
    worker: Worker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The target, worker by worker."""

    slots: tuple[Slot, ...]
    surplus: tuple[Worker, ...]
    """Workers that the target has no place for and that are not yet going."""
    ended: tuple[Worker, ...]
    """Pods that are over and only take up their name."""
    surge: Surge = field(default_factory=Surge)
    """Workers beyond the target, for a rollout."""

    @property
    def kept(self) -> tuple[tuple[Worker, Role], ...]:
        """Workers that stay, each with the role it is to have."""
        return tuple((slot.worker, slot.role) for slot in self.slots if slot.worker is not None)

    @property
    def roles(self) -> frozenset[Role]:
        """Roles that the target has."""
        return frozenset(slot.role for slot in self.slots)


def assign(snapshot: Snapshot, target: Target) -> Assignment:
    """Lay `target` over the workers with the fewest flips; equal snapshots give equal results."""
    surplus: list[Worker] = []
    places: list[tuple[str, int, Worker | None]] = []
    for pool, wanted in target.workers.items():
        live = [w for w in snapshot.in_pool(pool) if not w.deleting and not w.ended]
        removed = sorted(live, key=_removal_order)[: max(0, len(live) - wanted)]
        surplus += removed
        kept = [w for w in live if w not in removed]
        taken = {w.ordinal for w in kept}
        free = [n for n in range(len(taken) + wanted) if n not in taken][: wanted - len(kept)]
        pool_places: list[tuple[str, int, Worker | None]] = [(pool, w.ordinal, w) for w in kept]
        places += sorted([*pool_places, *((pool, n, None) for n in free)], key=lambda place: place[1])
    surplus += [w for w in snapshot.workers if w.pool not in target.workers and not w.deleting and not w.ended]
    return Assignment(
        slots=_with_roles(places, target),
        surplus=tuple(surplus),
        ended=tuple(w for w in snapshot.workers if w.ended and not w.deleting),
    )


def _removal_order(worker: Worker) -> tuple[bool, bool, int]:
    """Sort key: what drains already goes first (a choice once made is kept), then not-ready ones, then the highest."""
    return (worker.role is not Role.DRAINING, worker.ready, -worker.ordinal)


def _with_roles(places: list[tuple[str, int, Worker | None]], target: Target) -> tuple[Slot, ...]:
    """Give each place a role; a worker that has a role the target still wants keeps it."""
    flexible = [index for index, (pool, _, _) in enumerate(places) if pool not in target.fixed]
    wanted = {Role.PREFILL: target.flexible_prefill, Role.DECODE: len(flexible) - target.flexible_prefill}
    chosen: dict[int, Role] = {}
    for role, count in wanted.items():
        having = [index for index in flexible if _role_at(places, index) is role]
        # Those that flip away are the ones that serve nobody yet, then the last of the list.
        having.sort(key=lambda index: (not _ready_at(places, index), index))
        chosen |= dict.fromkeys(having[:count], role)
    for index in flexible:
        if index not in chosen:
            short = sum(1 for role in chosen.values() if role is Role.PREFILL) < wanted[Role.PREFILL]
            chosen[index] = Role.PREFILL if short else Role.DECODE
    _take_over_empty_role([worker for _, _, worker in places], chosen)
    return tuple(
        Slot(pool=pool, ordinal=ordinal, worker=worker, role=target.fixed.get(pool) or chosen[index])
        for index, (pool, ordinal, worker) in enumerate(places)
    )


def _take_over_empty_role(workers: list[Worker | None], chosen: dict[int, Role]) -> None:
    """Give a role whose worker is gone to a serving worker of the other role, where that has two or more.

    The replacement gets the other role: a flip takes moments, and a start can take minutes. `chosen` is the role
    of each place that has a choice, by its number among `workers`, and is changed.
    """
    served = served_roles(worker for worker in workers if worker is not None)
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        vacant = [index for index, wanted in chosen.items() if wanted is role and workers[index] is None]
        able = [
            index
            for index, wanted in chosen.items()
            if wanted is other and (worker := workers[index]) is not None and other in worker.serves
        ]
        if role not in served and vacant and len(able) > 1:
            chosen[max(able)], chosen[vacant[0]] = role, other
            return


def _role_at(places: list[tuple[str, int, Worker | None]], index: int) -> Role | None:
    worker = places[index][2]
    return worker.role if worker is not None else None


def _ready_at(places: list[tuple[str, int, Worker | None]], index: int) -> bool:
    worker = places[index][2]
    return worker is not None and worker.ready


def free_ordinals(snapshot: Snapshot, pool: str, reserved: Iterable[int]) -> Iterator[int]:
    """Yield the ordinals of a pool, lowest first, that no Pod has and that are not reserved."""
    occupied = {worker.name for worker in snapshot.workers} | snapshot.taken_names
    kept = set(reserved)
    return (n for n in itertools.count() if n not in kept and worker_name(snapshot.name, pool, n) not in occupied)
