"""Stage `split`: a worker changes its role when that serves more requests in time than it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import sqrt

from fulcrum.api.names import Role
from fulcrum.decide.best_split import splits
from fulcrum.decide.estimate import LoadEstimate, Noise
from fulcrum.decide.pools import PoolBounds
from fulcrum.decide.tuning import TUNING
from fulcrum.load.demand import Load
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.performance.model import PerformanceModel


@dataclass(frozen=True, slots=True)
class Move:
    """One worker of a pool changes its role."""

    pool: str
    from_role: Role
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """A layout that was compared with the one that stands."""

    layout: Layout
    gain: float
    """Requests that the change brings inside the SLO within the payback time, less its cost, at the expected load."""
    lowest: float
    """The same for the least favourable load within the bounds."""
    least: float
    """What the gain must exceed: the error of the estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Which workers change their role, and what was compared."""

    moves: tuple[Move, ...] = ()
    gain: float = 0.0
    """Requests that they bring inside the SLO within the payback time, less their cost, at the expected load."""
    considered: tuple[Considered, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What a flip is weighed by."""

    payback_seconds: float
    """How long the new role is kept at least, in which the flip must have paid for itself."""
    fails: bool
    """Fewer requests than promised were inside the SLO, those turned away included, as measured of what stands."""
    cost_workers: float
    """Workers that a flip takes away while its old work lasts (`Tuning`)."""


def split(
    pools: Sequence[PoolBounds],
    current: Layout,
    movable: Counter[tuple[str, Role]],
    *,
    load: LoadEstimate,
    model: PerformanceModel,
    stakes: Stakes,
) -> Flips:
    """Return the moves with the highest gain over cost; none when to stand still is best, or might be by noise.

    `current` are the workers that serve, `movable` how many of them may flip now (dwell), by pool and role.
    """
    if load.current.rate <= 0 or not current.complete:
        return Flips()
    workers = {pool.name: sum(current.in_pool(pool.name).values()) for pool in pools}
    best, considered = Flips(), list[Considered]()
    for goal in splits(pools, workers, model, load.current):
        wanted = moves_between((pool.name for pool in pools), current, goal)
        possible = possible_moves(wanted, movable)
        if load.answers_at_least:
            # Decode may get far more work than answers under way tell.
            possible = tuple(move for move in possible if move.role is not Role.PREFILL)
        counts = {len(possible), (len(possible) + 1) // 2, min(1, len(possible))} - {0}
        if current.mixed != goal.mixed:
            # Beside mixed workers, single roles say little about what all of them in one role would do.
            counts = {len(wanted)} if len(possible) == len(wanted) else set()
        found = _paying(current, possible, counts, load=load, model=model, stakes=stakes)
        considered += found.considered
        if found.gain > best.gain:
            best = found
    return replace(best, considered=tuple(considered))


def _paying(
    current: Layout,
    possible: tuple[Move, ...],
    counts: set[int],
    *,
    load: LoadEstimate,
    model: PerformanceModel,
    stakes: Stakes,
) -> Flips:
    """Return how many of the moves pay.

    They must bring more than the estimates are off, for what is expected and for what was measured, and be no loss
    in any load within the bounds. So must each further one.
    """
    loads = (load.current, *load.bounds, *_other_mix(current, possible, load))
    moves, gains, considered = possible[:0], [0.0] * len(loads), list[Considered]()
    for count in sorted(counts):
        layout = after(current, possible[:count])
        error = TUNING.estimate_error * stakes.payback_seconds
        least = [error * each.rate if place < 2 else 0.0 for place, each in enumerate(loads)]
        found: list[float] = []
        for each, before, least_more in zip(loads, gains, least, strict=True):
            found.append(_gain(current, possible[:count], each, model, stakes))
            if found[-1] <= before + least_more:
                break
        else:
            moves, gains = possible[:count], found
        considered.append(Considered(layout=layout, gain=found[0], lowest=min(found), least=least[0]))
    return Flips(moves=moves, gain=gains[0], considered=tuple(considered))


def after(current: Layout, moves: Sequence[Move]) -> Layout:
    """Return the layout after the moves."""
    return _without(current, moves).plus((move.pool, move.role, 1) for move in moves)


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


def _gain(current: Layout, moves: Sequence[Move], load: Load, model: PerformanceModel, stakes: Stakes) -> float:
    """Return the requests that the moves bring inside the SLO within the payback time, less what they cost."""
    layout = after(current, moves)
    if not layout.complete:
        return -1.0
    present = model.goodput(current, load)
    gain = (model.goodput(layout, load) - present) * stakes.payback_seconds
    leaving = [move for move in moves if _leaves_work(move, stakes)]
    if not leaving:
        return gain
    # While its old work lasts, a part of each worker is missing: in its new role, and where it is missed, in the old.
    residence = {role: model.residence_seconds(role, current, load) for role in {move.from_role for move in leaving}}
    missing_seconds = stakes.cost_workers * sum(residence[move.from_role] for move in leaving) / len(leaving)
    missed = max(0.0, present - model.goodput(_without(current, leaving), load))
    return gain * max(0.0, 1 - missing_seconds / stakes.payback_seconds) - missed * missing_seconds


def _leaves_work(move: Move, stakes: Stakes) -> bool:
    """Report whether a worker is missing while its old work lasts: one that did both goes on with it as it decodes.

    To one that will do both, old work is work of its new role. But all workers change at once for that, on the word of
    a model: it is believed only where what stands is seen to fail.
    """
    if move.role is Role.MIXED:
        return not stakes.fails
    return (move.from_role, move.role) != (Role.MIXED, Role.DECODE)


def _without(current: Layout, moves: Sequence[Move]) -> Layout:
    return current.plus((move.pool, move.from_role, -1) for move in moves)


def _other_mix(current: Layout, moves: Sequence[Move], load: LoadEstimate) -> tuple[Load, ...]:
    """Return the load with the mix that favours what stands, as far as it may be; nothing for moves to or from mixed.

    For those the mix matters less than how much there is.
    """
    layout = after(current, moves)
    towards = layout.count(Role.PREFILL) - current.count(Role.PREFILL)
    away = layout.count(Role.DECODE) - current.count(Role.DECODE)
    if towards * away >= 0:
        return ()
    prefill, decode = _mix_doubt(load.noise)
    sign = 1 if towards > 0 else -1
    return (load.current.shifted(prefill=max(0.0, 1 - sign * prefill), decode=max(0.0, 1 + sign * decode)),)


def _mix_doubt(noise: Noise) -> tuple[float, float]:
    """Return the shares by which prefill and decode work are off when their ratio is off by `Tuning.noise_sigmas`."""
    ratio = sqrt(noise.isl**2 + noise.osl**2)
    if ratio == 0:
        return 0.0, 0.0
    return TUNING.noise_sigmas * noise.isl**2 / ratio, TUNING.noise_sigmas * noise.osl**2 / ratio
