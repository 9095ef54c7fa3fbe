"""The workers of one request: two legs, or one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic

from fulcrum.api.names import Role
from fulcrum.routing._choice import C, NobodyFits, NobodyThere, nobody, pick, score


@dataclass(frozen=True, slots=True)
class TwoLegs(Generic[C]):
    """Prefill on one worker, decode on another."""

    prefill: C
    decode: C


@dataclass(frozen=True, slots=True)
class OneLeg(Generic[C]):
    """The whole request on one worker; every engine is `kv_both`, so any can."""

    worker: C


# This runs for each request over all workers: members are compared by identity, found once.
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE
_MIXED: Final = Role.MIXED
_SERVING: Final = (_PREFILL, _DECODE, _MIXED)


def plan(
    workers: Collection[C], *, whole: bool = False, exclude: Collection[str] = (), turn: int = 0
) -> TwoLegs[C] | OneLeg[C] | NobodyThere | NobodyFits:
    """Path of one request.

    `whole` asks for one leg (the two-leg protocol cannot carry the request). A prefill and a decode worker are taken
    together; a mixed worker is taken instead when it is less loaded than the busier of the two. When a role is empty
    the request still goes, in one leg, to any worker in a role.
    """
    prefills: list[C] = []
    decodes: list[C] = []
    mixeds: list[C] = []
    for worker in workers:
        role = worker.role
        if exclude and worker.name in exclude:
            continue
        if role is _PREFILL:
            prefills.append(worker)
        elif role is _DECODE:
            decodes.append(worker)
        elif role is _MIXED:
            mixeds.append(worker)
    prefill, decode, mixed = pick(prefills, turn), pick(decodes, turn), pick(mixeds, turn)
    if not whole and prefill is not None and decode is not None:
        if mixed is not None and score(mixed) < max(score(prefill), score(decode)):
            return OneLeg(mixed)
        return TwoLegs(prefill, decode)
    # A whole request is mostly decoding, so it disturbs a decode worker less than a prefill worker.
    in_order = [worker for worker in (mixed, decode, prefill) if worker is not None]
    for worker in in_order:
        if not worker.suspect:
            return OneLeg(worker)
    return OneLeg(in_order[0]) if in_order else nobody(workers, _SERVING)


def usable_path(workers: Iterable[C]) -> bool:
    """Whether `plan` has a path for a request: any worker in a role will do, because every engine is `kv_both`."""
    return any(worker.role in _SERVING for worker in workers)
