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

import numpy as np

from fulcrum.api.pool_types import PoolAdmits
from fulcrum.load.demand import Demand
from fulcrum.performance.layout import PoolCounts
from fulcrum.performance.queueing.lengths import Floats, log_spread
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


def divide(
    demand: Demand, counts: PoolCounts, admits: Mapping[str, PoolAdmits], capacity: Capacity
) -> tuple[Part, ...]:
    """Return what each group of pools with the same `admits` gets; in all less than 1 where no pool takes some."""
    if not any(pool in admits for pool, _ in counts):
        return (Part(share=1.0, demand=demand, counts=counts),)
    segments = _segments(demand, admits, [pool for pool, _ in counts])
    moments = list(segments.values())
    demands = [_of(demand, each) for each in moments]
    groups: dict[frozenset[int], list[tuple[str, int]]] = {}
    for pool, count in counts:
        served = frozenset(number for number, takers in enumerate(segments) if pool in takers)
        if served:
            groups.setdefault(served, []).append((pool, count))
    order = sorted(groups, key=lambda served: sum(moments[number][0] for number in served))

    def carried(served: Iterable[frozenset[int]]) -> Floats:
        """Return the requests/s of each segment that the workers of groups carry."""
        rates = np.zeros(len(moments))
        for group in served:
            for number in group:
                rates[number] += sum(count * capacity(pool, demands[number]) for pool, count in groups[group])
        return rates

    left = np.array([each[0] for each in moments])
    parts = []
    for place, served in enumerate(order):
        own, rest = carried([served]), carried(order[place + 1 :])
        share = np.where(rest == 0.0, 1.0, np.where(own > 0.0, _level(left, own, rest), 0.0))
        taken = [left[number] * share[number] / moments[number][0] * moments[number] for number in served]
        left[list(served)] *= 1.0 - share[list(served)]
        all_taken = np.sum(taken, axis=0)
        if all_taken[0] > TUNING.least_share:
            parts.append(Part(share=float(all_taken[0]), demand=_of(demand, all_taken), counts=tuple(groups[served])))
    return tuple(parts)


def eligible(demand: Demand, pool: str, admits: Mapping[str, PoolAdmits]) -> tuple[float, Demand]:
    """Return the share of the requests that a pool takes, and what these are."""
    if pool not in admits:
        return 1.0, demand
    taken = sum(_segments(demand, admits, [pool]).values(), start=np.zeros(3))
    return (float(taken[0]), _of(demand, taken)) if taken[0] > TUNING.least_share else (0.0, demand)


def _level(shares: Floats, own: Floats, rest: Floats) -> float:
    """Return which part of what others take, too, makes a group as busy as these then are; 0 to 1."""
    own_work, rest_work = (
        np.divide(shares, rates, out=np.zeros_like(shares), where=rates > 0.0) for rates in (own, rest)
    )
    both = float((own_work + rest_work)[(own > 0.0) & (rest > 0.0)].sum())
    more = float(rest_work.sum() - own_work[rest == 0.0].sum())
    return min(max(more / both, 0.0), 1.0) if both > 0.0 else 0.0


def _segments(demand: Demand, admits: Mapping[str, PoolAdmits], pools: Sequence[str]) -> dict[frozenset[str], Floats]:
    """Return share, sum of the prompts and of their squares (as means over all requests) of what the same pools take.

    What no pool takes is left out.
    """
    rules = {pool: admits[pool] for pool in pools if pool in admits}
    edges = sorted({0.0, inf, *(edge for rule in rules.values() for edge in _bounds(rule))})
    found: dict[frozenset[str], Floats] = {}
    for name, share, mean, cv2 in _classes(demand):
        for low, high in pairwise(edges):
            takers = frozenset(p for p in pools if p not in rules or _takes(rules[p], name, low, high))
            moments = share * _between(mean, cv2, low, high)
            if takers and moments[0] > TUNING.least_share:
                found[takers] = found.get(takers, 0.0) + moments
    return found


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


def _between(mean: float, cv2: float, low: float, high: float) -> Floats:
    """Return share, sum and sum of squares of the lengths between two bounds, of log-normal ones."""
    sigma = log_spread(cv2)

    def below(bound: float, moment: int) -> float:
        if bound in (0.0, inf) or sigma == 0.0:
            return float(mean <= bound)
        return _NORMAL.cdf((log(bound / mean) + sigma**2 / 2) / sigma - moment * sigma)

    whole = np.array([1.0, mean, mean**2 * (1.0 + cv2)])
    parts: Floats = whole * [below(high, moment) - below(low, moment) for moment in range(3)]
    return parts


def _of(demand: Demand, moments: Floats) -> Demand:
    """Return the demand that requests with such moments are."""
    share, mean, square = float(moments[0]), float(moments[1] / moments[0]), float(moments[2] / moments[0])
    return replace(
        demand, rate=demand.rate * share, isl_tokens=mean, isl_cv2=max(square / mean**2 - 1.0, 0.0), classes=()
    )
