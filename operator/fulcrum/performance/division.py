"""Which requests go to which pools, where pools do not take every request (`pools[].admits`).

Prompt lengths are log-normal, in each class with the same spread. Requests fall into segments that the same pools take.
The pools that take the fewest are filled first, up to the share of their time that the pools after them are busy; what
only they take is theirs in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log
from statistics import NormalDist
from typing import Final

from fulcrum.api.pool_types import PoolAdmits
from fulcrum.load.demand import Demand
from fulcrum.performance.layout import PoolCounts
from fulcrum.performance.queueing.lengths import log_spread
from fulcrum.performance.tuning import TUNING

Capacity = Callable[[str, Demand], float]
"""Requests/s that one worker of a pool carries of a demand; 0 where it is too slow for the promise."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What some of the pools get."""

    share: float
    """Of all requests, 0 to 1."""
    demand: Demand
    counts: PoolCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Requests that the same pools take."""

    takers: frozenset[str]
    share: float
    """Of all requests."""
    tokens: float
    """Sum of their prompts, as a mean over all requests."""
    squares: float


def divide(
    demand: Demand, counts: PoolCounts, admits: Mapping[str, PoolAdmits], capacity: Capacity
) -> tuple[Part, ...]:
    """Return what each group of pools with the same `admits` gets; in all less than 1 where no pool takes some."""
    if not any(pool in admits for pool, _ in counts):
        return (Part(share=1.0, demand=demand, counts=counts),)
    segments = [each for each in _segments(demand, admits, [pool for pool, _ in counts]) if each.takers]
    demands = [_mixture(demand, [(1.0, each)]) for each in segments]
    groups: dict[frozenset[int], list[tuple[str, int]]] = {}
    for pool, count in counts:
        served = frozenset(number for number, each in enumerate(segments) if pool in each.takers)
        if served:
            groups.setdefault(served, []).append((pool, count))
    order = sorted(groups, key=lambda served: sum(segments[number].share for number in served))

    def carried(number: int, served: Iterable[frozenset[int]]) -> float:
        """Return the requests/s of a segment that the workers of groups carry."""
        return sum(
            count * capacity(pool, demands[number])
            for group in served
            if number in group
            for pool, count in groups[group]
        )

    left = [1.0] * len(segments)
    parts = []
    for place, served in enumerate(order):
        own = {number: carried(number, [served]) for number in served}
        rest = {number: carried(number, order[place + 1 :]) for number in range(len(segments))}
        level = _level(segments, left, own, rest)
        taken = []
        for number in sorted(served):
            part = left[number] * (1.0 if rest[number] == 0.0 else level if own[number] > 0.0 else 0.0)
            left[number] -= part
            taken.append((part, segments[number]))
        share = sum(part * each.share for part, each in taken)
        if share > TUNING.least_share:
            parts.append(Part(share=share, demand=_mixture(demand, taken), counts=tuple(groups[served])))
    return tuple(parts)


def eligible(demand: Demand, pool: str, admits: Mapping[str, PoolAdmits]) -> tuple[float, Demand]:
    """Return the share of the requests that a pool takes, and what these are."""
    if pool not in admits:
        return 1.0, demand
    taken = [(1.0, each) for each in _segments(demand, admits, [pool]) if each.takers]
    share = sum(each.share for _, each in taken)
    return (share, _mixture(demand, taken)) if share > TUNING.least_share else (0.0, demand)


def _level(
    segments: Sequence[_Segment], left: Sequence[float], own: Mapping[int, float], rest: Mapping[int, float]
) -> float:
    """Return which part of what others take, too, makes a group as busy as these then are; 0 to 1."""

    def work(number: int, capacity: Mapping[int, float]) -> float:
        return left[number] * segments[number].share / capacity[number]

    shared = [number for number, capacity in own.items() if capacity > 0.0 and rest[number] > 0.0]
    alone = sum(work(number, own) for number, capacity in own.items() if capacity > 0.0 and rest[number] == 0.0)
    others = sum(work(number, rest) for number, capacity in rest.items() if capacity > 0.0)
    both = sum(work(number, own) + work(number, rest) for number in shared)
    return min(max((others - alone) / both, 0.0), 1.0) if both > 0.0 else 0.0


def _segments(demand: Demand, admits: Mapping[str, PoolAdmits], pools: Sequence[str]) -> list[_Segment]:
    rules = {pool: admits[pool] for pool in pools if pool in admits}
    edges = sorted({0.0, inf, *(edge for rule in rules.values() for edge in _bounds(rule))})
    found: dict[frozenset[str], list[tuple[float, float, float]]] = {}
    for name, share, mean, cv2 in _classes(demand):
        for low, high in pairwise(edges):
            takers = frozenset(p for p in pools if p not in rules or _takes(rules[p], name, low, high))
            part, tokens, squares = _between(mean, cv2, low, high)
            if share * part > TUNING.least_share:
                found.setdefault(takers, []).append((share * part, share * tokens, share * squares))
    return [
        _Segment(
            takers=takers, share=sum(e[0] for e in of), tokens=sum(e[1] for e in of), squares=sum(e[2] for e in of)
        )
        for takers, of in found.items()
    ]


def _classes(demand: Demand) -> list[tuple[str | None, float, float, float]]:
    """Return (name, share, mean prompt, squared coefficient of variation) of each class; without a name: unknown."""
    if not demand.classes:
        return [(None, 1.0, demand.isl_tokens, demand.isl_cv2)]
    means = [each.relative_tokens * demand.isl_tokens for each in demand.classes]
    squares = sum(each.share * mean**2 for each, mean in zip(demand.classes, means, strict=True))
    within = max(demand.isl_tokens**2 * (1.0 + demand.isl_cv2) / squares - 1.0, 0.0)
    return [(each.name, each.share, mean, within) for each, mean in zip(demand.classes, means, strict=True)]


def _bounds(rule: PoolAdmits) -> tuple[float, float]:
    """Return the bounds of an interval: lengths are whole numbers, so they lie half a token beyond those inside."""
    low = 0.0 if not rule.min_prompt_tokens else rule.min_prompt_tokens - 0.5
    return low, inf if rule.max_prompt_tokens is None else rule.max_prompt_tokens + 0.5


def _takes(rule: PoolAdmits, qos_class: str | None, low: float, high: float) -> bool:
    shortest, longest = _bounds(rule)
    return shortest <= low and high <= longest and (qos_class is None or not rule.classes or qos_class in rule.classes)


def _between(mean: float, cv2: float, low: float, high: float) -> tuple[float, float, float]:
    """Return share, sum and sum of squares of the lengths between two bounds, of log-normal ones."""
    sigma = log_spread(cv2)
    if sigma == 0.0:
        return (1.0, mean, mean**2) if low < mean <= high else (0.0, 0.0, 0.0)

    def below(bound: float, moment: int) -> float:
        if bound in (0.0, inf):
            return 1.0 if bound else 0.0
        return _NORMAL.cdf((log(bound / mean) + sigma**2 / 2) / sigma - moment * sigma)

    share, tokens, squares = (below(high, moment) - below(low, moment) for moment in range(3))
    return share, mean * tokens, mean**2 * (1.0 + cv2) * squares


def _mixture(demand: Demand, parts: Sequence[tuple[float, _Segment]]) -> Demand:
    """Return the demand that parts of segments make up."""
    share = sum(part * each.share for part, each in parts)
    if share <= 0.0:
        return replace(demand, rate=0.0, classes=())
    mean = sum(part * each.tokens for part, each in parts) / share
    square = sum(part * each.squares for part, each in parts) / share
    return replace(
        demand,
        rate=demand.rate * share,
        isl_tokens=mean,
        isl_cv2=max(square / mean**2 - 1.0, 0.0),
        classes=(),
    )
