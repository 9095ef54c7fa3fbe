"""The workers of one request: two legs, or one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic

from fulcrum.api.names import Role
from fulcrum.routing._choice import C, Chosen, NobodyFits, NobodyThere, choose


@dataclass(frozen=True, slots=True)
class TwoLegs(Generic[C]):
    """Prefill on one worker, decode on another."""

    prefill: C
    decode: C


@dataclass(frozen=True, slots=True)
class OneLeg(Generic[C]):
    """The whole request on one worker; every engine is `kv_both`, so any can."""

    worker: C


_PREFILL: Final = (Role.PREFILL,)
_DECODE: Final = (Role.DECODE,)
_MIXED: Final = (Role.MIXED,)
# A whole request is mostly decoding, so it disturbs a decode worker less than a prefill worker.
_WHOLE: Final = (_MIXED, _DECODE, _PREFILL)


def plan(
    workers: Collection[C], *, whole: bool = False, exclude: Collection[str] = (), turn: int = 0
) -> TwoLegs[C] | OneLeg[C] | NobodyThere | NobodyFits:
    """Path of one request.

    `whole` asks for one leg (the two-leg protocol cannot carry the request). A prefill and a decode worker are taken
    together; a mixed worker is taken instead when it is less loaded than the busier of the two. When a role is empty
    the request still goes, in one leg, to any worker in a role.
    """
    if not whole:
        prefill = choose(workers, roles=_PREFILL, exclude=exclude, turn=turn)
        decode = choose(workers, roles=_DECODE, exclude=exclude, turn=turn)
        if isinstance(prefill, Chosen) and isinstance(decode, Chosen):
            mixed = choose(workers, roles=_MIXED, exclude=exclude, turn=turn)
            pair_load = max(_load(prefill.worker), _load(decode.worker))
            if isinstance(mixed, Chosen) and _load(mixed.worker) < pair_load:
                return OneLeg(mixed.worker)
            return TwoLegs(prefill.worker, decode.worker)
    outcome: Chosen[C] | NobodyThere | NobodyFits = NobodyThere()
    suspect: C | None = None
    for roles in _WHOLE:
        outcome = choose(workers, roles=roles, exclude=exclude, turn=turn)
        if isinstance(outcome, Chosen):
            if not outcome.worker.suspect:
                return OneLeg(outcome.worker)
            suspect = suspect or outcome.worker
    if suspect is not None:
        return OneLeg(suspect)
    assert not isinstance(outcome, Chosen)
    if isinstance(outcome, NobodyFits):
        excluded = sum(worker.name in exclude for worker in workers)
        return NobodyFits(known=outcome.known, wrong_role=outcome.known - excluded, excluded=excluded)
    return outcome


def usable_path(workers: Iterable[C]) -> bool:
    """Whether requests are served as meant: a prefill and a decode worker, or a mixed one, is known."""
    roles = {worker.role for worker in workers}
    return Role.MIXED in roles or {Role.PREFILL, Role.DECODE} <= roles


def _load(worker: C) -> tuple[bool, int]:
    return (worker.suspect, worker.in_flight)
