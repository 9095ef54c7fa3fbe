"""Which flips pay: a worker changes its role when that serves more requests in time than it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Final

from fulcrum.api.names import Role
from fulcrum.balance.load import NOISE_SIGMAS, Loads, Noise
from fulcrum.balance.pools import PoolBounds
from fulcrum.balance.split import splits
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel

IMMEDIATE_COST: Final = 0.5
"""Workers that a flip takes away while old work finishes: it serves two roles, each with half of its time."""
DRAIN_COST: Final = 1.0
"""The same for style Drain: nothing new arrives until the old work is done."""
ESTIMATE_ERROR: Final = 0.01
"""Share of requests by which the estimates are off themselves (docs/concepts/sizing.md): less than that is no gain."""
SPLIT_ERROR: Final = 0.003
"""The same for what one split has over another: much of their errors is the same (`benchmarks/splits.py`)."""
LAST_ERROR: Final = 0.005
"""The same where a role is left to a single worker, with which it would end until another one has taken it over."""
_ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)


@dataclass(frozen=True, slots=True)
class Move:
    """One worker of a pool changes its role."""

    pool: str
    from_role: Role
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What a flip is weighed by."""

    payback_seconds: float
    """How long the new role is kept at least, in which the flip must have paid for itself."""
    cost_workers: float
    """`IMMEDIATE_COST` or `DRAIN_COST`."""


def paying_moves(
    rooms: Sequence[PoolBounds],
    standing: Layout,
    movable: Counter[tuple[str, Role]],
    *,
    loads: Loads,
    service: PerformanceModel,
    stakes: Stakes,
) -> tuple[Move, ...]:
    """Return the moves with the highest gain over cost; none when standing still is best, or might be by noise.

    `standing` are the workers that serve, `movable` how many of them may flip now (dwell), by pool and role.
    """
    if loads.near.rate <= 0 or not standing.complete:
        return ()
    workers = {room.name: sum(standing.in_pool(room.name).values()) for room in rooms}
    best: tuple[float, tuple[Move, ...]] = (0.0, ())
    for goal in splits(rooms, workers, service, loads.near):
        wanted = _moves(rooms, standing, goal)
        possible = _possible(wanted, movable)
        counts = {len(possible), (len(possible) + 1) // 2, min(1, len(possible))} - {0}
        if standing.mixed != goal.mixed:
            # To do both is a matter of minutes and of all or none.
            if loads.slow is None or len(possible) < len(wanted):
                continue
            counts = {len(possible)}
        found = _paying(standing, possible, counts, loads=loads, service=service, stakes=stakes)
        error = ESTIMATE_ERROR * loads.near.rate * stakes.payback_seconds if best[1] else 0.0
        if found[0] > best[0] + error:
            best = found
    return best[1]


def _paying(
    standing: Layout,
    possible: tuple[Move, ...],
    counts: set[int],
    *,
    loads: Loads,
    service: PerformanceModel,
    stakes: Stakes,
) -> tuple[float, tuple[Move, ...]]:
    """Return what the moves gain, and how many of them pay.

    They must bring more than the estimates are off, for what is expected and for what was measured, and be no loss
    in any load that it may be instead. So must each further one.
    """
    doubts = _doubts(standing, possible, loads)
    judged = (loads.near, loads.near.with_rate(loads.measured_rate), *doubts)
    moves, gains = possible[:0], [0.0] * len(judged)
    for count in sorted(counts):
        more = possible[:count]
        error = _error(standing, after(standing, more)) * stakes.payback_seconds
        least = [error * load.rate for load in judged[:2]] + [0.0] * len(doubts)
        found: list[float] = []
        for load, before, least_more in zip(judged, gains, least, strict=True):
            gain = _gain(standing, more, load, service, stakes)
            if gain <= before + least_more:
                break
            found.append(gain)
        else:
            moves, gains = more, found
    return gains[0], moves


def _error(standing: Layout, layout: Layout) -> float:
    """Return the share of requests that a change must bring at least."""
    if layout.mixed != standing.mixed:
        return ESTIMATE_ERROR
    left_alone = any(layout.count(role) == 1 < standing.count(role) for role in (Role.PREFILL, Role.DECODE))
    return LAST_ERROR if left_alone else SPLIT_ERROR


def after(standing: Layout, moves: Iterable[Move]) -> Layout:
    """Return the layout after the moves."""
    counts = {role: Counter(dict(standing.of_role(role))) for role in _ROLES}
    for move in moves:
        counts[move.from_role][move.pool] -= 1
        counts[move.role][move.pool] += 1
    return Layout.of(prefill=counts[Role.PREFILL], decode=counts[Role.DECODE], mixed=counts[Role.MIXED])


def _moves(rooms: Sequence[PoolBounds], standing: Layout, goal: Layout) -> list[Move]:
    found: list[list[Move]] = []
    for room in rooms:
        have, want = standing.in_pool(room.name), goal.in_pool(room.name)
        givers = [role for role in _ROLES for _ in range(max(0, have.get(role, 0) - want.get(role, 0)))]
        takers = [role for role in _ROLES for _ in range(max(0, want.get(role, 0) - have.get(role, 0)))]
        found.append([Move(room.name, giver, taker) for giver, taker in zip(givers, takers, strict=True)])
    return list(chain.from_iterable(found))


def _possible(moves: list[Move], movable: Counter[tuple[str, Role]]) -> tuple[Move, ...]:
    left = Counter(movable)
    chosen = []
    for move in moves:
        if left[move.pool, move.from_role] > 0:
            left[move.pool, move.from_role] -= 1
            chosen.append(move)
    return tuple(chosen)


def _gain(standing: Layout, moves: Sequence[Move], load: Load, service: PerformanceModel, stakes: Stakes) -> float:
    """Return the requests that the moves bring inside the SLO within the payback time, less what they cost."""
    layout = after(standing, moves)
    if not layout.complete:
        return -1.0
    present = service.goodput(standing, load)
    # While its old work lasts, a part of each worker is missing: in its new role, and where it is missed, in the old.
    residence = {role: service.residence_seconds(role, standing, load) for role in {move.from_role for move in moves}}
    missing_seconds = stakes.cost_workers * sum(residence[move.from_role] for move in moves) / len(moves)
    missed = max(0.0, present - service.goodput(_without(standing, moves), load))
    gain = service.goodput(layout, load) - present
    return gain * max(0.0, stakes.payback_seconds - missing_seconds) - missed * missing_seconds


def _without(standing: Layout, moves: Iterable[Move]) -> Layout:
    counts = {role: Counter(dict(standing.of_role(role))) for role in _ROLES}
    for move in moves:
        counts[move.from_role][move.pool] -= 1
    return Layout.of(prefill=counts[Role.PREFILL], decode=counts[Role.DECODE], mixed=counts[Role.MIXED])


def _doubts(standing: Layout, moves: Sequence[Move], loads: Loads) -> list[Load]:
    """Return what the load may be instead, by what was measured: less, more, and a mix that favours what stands."""
    if not moves:
        return []
    more = loads.near.with_rate(loads.near.rate * (1 + NOISE_SIGMAS * loads.noise.rate))
    other_mix = _other_mix(standing, moves, loads)
    if other_mix is not None:
        return [loads.sure, more, other_mix]
    # Everybody flips: a mix that passes through the window on its way to another is no reason for that.
    return [loads.sure, more, loads.near.even(), *([loads.slow] if loads.slow is not None else [])]


def _other_mix(standing: Layout, moves: Sequence[Move], loads: Loads) -> Load | None:
    """Return the load with a mix that favours what stands, as far as that may be; None for moves to or from mixed.

    For those the mix matters less than how much there is.
    """
    layout = after(standing, moves)
    towards = layout.count(Role.PREFILL) - standing.count(Role.PREFILL)
    away = layout.count(Role.DECODE) - standing.count(Role.DECODE)
    if towards * away >= 0:
        return None
    prefill, decode = _mix_doubt(loads.noise)
    sign = 1 if towards > 0 else -1
    return loads.near.shifted(prefill=max(0.0, 1 - sign * prefill), decode=max(0.0, 1 + sign * decode))


def _mix_doubt(noise: Noise) -> tuple[float, float]:
    """Return the shares by which prefill and decode work are off when their ratio is off by `NOISE_SIGMAS`."""
    ratio = sqrt(noise.isl**2 + noise.osl**2)
    if ratio == 0:
        return 0.0, 0.0
    return NOISE_SIGMAS * noise.isl**2 / ratio, NOISE_SIGMAS * noise.osl**2 / ratio
