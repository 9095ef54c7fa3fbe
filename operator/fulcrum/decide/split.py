"""Stage `split`: moves of workers between layouts, and those that are beyond doubt where nothing is rehearsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from fulcrum.api.names import Role
from fulcrum.decide.estimate import LoadEstimate
from fulcrum.load.demand import Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import ROLES, Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One worker of a pool changes its role."""

    pool: str
    from_role: Role
    role: Role


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


def after(current: Layout, moves: Sequence[Move]) -> Layout:
    """Return the layout after the moves."""
    gone = current.plus((move.pool, move.from_role, -1) for move in moves)
    return gone.plus((move.pool, move.role, 1) for move in moves)


def moves_between(pools: Iterable[str], current: Layout, goal: Layout) -> list[Move]:
    """Return the fewest moves within pools from one layout to the other."""
    found: list[list[Move]] = []
    for pool in pools:
        have, want = current.in_pool(pool), goal.in_pool(pool)
        givers = [role for role in ROLES for _ in range(max(0, have.get(role, 0) - want.get(role, 0)))]
        takers = [role for role in ROLES for _ in range(max(0, want.get(role, 0) - have.get(role, 0)))]
        found.append([Move(pool, giver, taker) for giver, taker in zip(givers, takers, strict=True)])
    return list(chain.from_iterable(found))


def possible_moves(moves: list[Move], movable: Counter[tuple[str, Role]]) -> tuple[Move, ...]:
    """Return those for which there are workers; `movable`: how many may flip now, by pool and role."""
    left = Counter(movable)
    chosen = []
    for move in moves:
        if left[move.pool, move.from_role] > 0:
            left[move.pool, move.from_role] -= 1
            chosen.append(move)
    return tuple(chosen)
