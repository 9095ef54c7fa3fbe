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
    """Workers exist, but none of them may take this request now: later, or in a pool that has none yet, one may."""

    known: int
    wrong_role: int
    excluded: int


@dataclass(frozen=True, slots=True)
class NoPool:
    """No pool takes this request, now or later: it is too long for any of them, or admitted by none."""

    known: int


def choose(
    workers: Collection[C], *, roles: Collection[Role], exclude: Collection[str] = (), turn: int = 0
) -> Chosen[C] | NobodyThere | NobodyFits:
    """Least loaded worker among those in one of `roles` and not named in `exclude`.

    Suspects come last. Among equals, the caller's `turn` (any growing counter) decides, so that ties rotate.
    """
    best = pick(fitting(workers, roles, exclude), turn)
    return Chosen(best) if best is not None else nobody(workers, roles)


def fitting(workers: Iterable[C], roles: Collection[Role], exclude: Collection[str]) -> list[C]:
    """Filter: workers in one of `roles` that are not excluded."""
    if exclude:
        return [worker for worker in workers if worker.role in roles and worker.name not in exclude]
    return [worker for worker in workers if worker.role in roles]


def score(worker: Candidate) -> tuple[bool, int]:
    """Score, lower is better."""
    return (worker.suspect, worker.in_flight)


def pick(workers: list[C], turn: int) -> C | None:
    """Pick: the best score, ties in rotation."""
    if len(workers) < 2:
        return workers[0] if workers else None
    scores = [score(worker) for worker in workers]
    best_score = min(scores)
    best = [worker for worker, each in zip(workers, scores, strict=True) if each == best_score]
    return best[turn % len(best)]


def nobody(workers: Collection[Candidate], roles: Collection[Role]) -> NobodyThere | NobodyFits:
    """Why nobody was picked."""
    if not workers:
        return NobodyThere()
    wrong_role = sum(worker.role not in roles for worker in workers)
    return NobodyFits(known=len(workers), wrong_role=wrong_role, excluded=len(workers) - wrong_role)
