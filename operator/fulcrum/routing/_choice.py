"""Filter -> score -> pick over workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fulcrum.api.names import Role


class Candidate(Protocol):
    """What a choice needs to know of a worker."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def in_flight(self) -> int:
        """Legs under way on it."""

    @property
    def suspect(self) -> bool:
        """It failed a moment ago: taken only when nobody else fits."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[C]):
    """The worker that was picked."""

    worker: C


@dataclass(frozen=True, slots=True)
class NobodyThere:
    """No worker is known at all: the cluster is empty, starting, or out of sight."""


@dataclass(frozen=True, slots=True)
class NobodyFits:
    """Workers exist, but none of them may take this request."""

    known: int
    wrong_role: int
    excluded: int


def choose(
    workers: Iterable[C], *, roles: Collection[Role], exclude: Collection[str] = (), turn: int = 0
) -> Chosen[C] | NobodyThere | NobodyFits:
    """Least loaded worker among those in one of `roles` and not named in `exclude`.

    Suspects come last. Among equals, the caller's `turn` (any growing counter) decides, so that ties rotate.
    """
    known = wrong_role = excluded = 0
    best: list[C] = []
    best_score = (True, 0)
    for worker in workers:
        known += 1
        if worker.role not in roles:
            wrong_role += 1
            continue
        if worker.name in exclude:
            excluded += 1
            continue
        score = (worker.suspect, worker.in_flight)
        if not best or score < best_score:
            best = [worker]
            best_score = score
        elif score == best_score:
            best.append(worker)
    if best:
        return Chosen(best[turn % len(best)])
    if known == 0:
        return NobodyThere()
    return NobodyFits(known=known, wrong_role=wrong_role, excluded=excluded)
