"""Moves of workers between layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from fulcrum.api.names import Role
from fulcrum.performance.layout import ROLES, Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One worker of a pool changes its role."""

    pool: str
    from_role: Role
    role: Role


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
