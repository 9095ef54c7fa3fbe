"""Given workers, the roles in which they serve the most requests inside the SLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from fulcrum.api.names import Role
from fulcrum.decide.pools import PoolBounds
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel
from fulcrum.performance.tuning import TUNING

FINENESS: Final = 128
"""Splits of many workers are searched in steps of one part in this many: finer ones change nothing measurable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """All splits of the given workers, from fewest to most prefill workers.

    Flippable pools are in the order of their comparative advantage (Ricardo): pools that give up the least decoding
    for their prefill go first, so that one number says which worker does what.
    """

    prefill: dict[str, int]
    decode: dict[str, int]
    mixed: dict[str, int]
    flexible: tuple[tuple[str, int], ...]
    mixes: bool
    """Flippable workers may also do both: all their pools allow it, or there is only one worker."""

    @property
    def lowest(self) -> int:
        """Fewest flippable workers that must prefill."""
        return 0 if self.prefill else 1

    @property
    def highest(self) -> int:
        """Most flippable workers that may prefill."""
        return sum(count for _, count in self.flexible) - (0 if self.decode else 1)

    def at(self, prefilling: int) -> Layout:
        prefill, decode = dict(self.prefill), dict(self.decode)
        for pool, count in self.flexible:
            taken = min(prefilling, count)
            prefill[pool], decode[pool] = taken, count - taken
            prefilling -= taken
        return Layout.of(prefill=prefill, decode=decode, mixed=self.mixed)

    def all_mixed(self) -> Layout:
        return Layout.of(prefill=self.prefill, decode=self.decode, mixed=self.mixed | dict(self.flexible))


def splits(
    pools: Sequence[PoolBounds], workers: dict[str, int], model: PerformanceModel, load: Load
) -> tuple[Layout, ...]:
    """Return the best disaggregated split of `workers` and, where they may, the one in which flippable workers do both.

    One that leaves prefill or decode without a worker is left out; without workers there is none. The one with the
    higher goodput comes first; where both keep the promise, the disaggregated one.
    """
    key = (tuple(sorted((pool.name, workers[pool.name]) for pool in pools)), load)
    if key not in model.known_splits:
        model.known_splits[key] = _splits(_line(pools, workers, model, load), model, load)
    return model.known_splits[key]


def _splits(line: _Line, model: PerformanceModel, load: Load) -> tuple[Layout, ...]:
    found: list[Layout] = []
    if line.lowest <= line.highest:
        best = line.at(_best_on(line, model, load))
        found.append(_swapped(best, [pool for pool, _ in line.flexible], _worth(best, model, load)))
    together = line.all_mixed()
    if line.mixes and together.complete and together not in found:
        found.append(together)
    promised = load.rate * model.slo.attainment
    return tuple(sorted(found, key=lambda layout: min(model.goodput(layout, load), promised), reverse=True))


def _line(pools: Sequence[PoolBounds], workers: dict[str, int], model: PerformanceModel, load: Load) -> _Line:
    having = {role: {r.name: workers[r.name] for r in pools if r.role is role and workers[r.name]} for role in _KINDS}
    flexible = sorted(having[None].items(), key=lambda item: -_advantage(model, item[0], load))
    return _Line(
        prefill=having[Role.PREFILL],
        decode=having[Role.DECODE],
        mixed=having[Role.MIXED],
        flexible=tuple(flexible),
        mixes=all(pool.mixes for pool in pools if pool.name in having[None]) or sum(workers.values()) == 1,
    )


_KINDS: Final = (Role.PREFILL, Role.DECODE, Role.MIXED, None)


def _advantage(model: PerformanceModel, pool: str, load: Load) -> float:
    rates = model.unit_rates(pool, load)
    return rates.prefill / rates.decode


def _best_on(line: _Line, model: PerformanceModel, load: Load) -> int:
    def prefill_covers(k: int) -> bool:
        layout = line.at(k)
        prefill, decode = (model.role_rate(layout, load, role) for role in (Role.PREFILL, Role.DECODE))
        return prefill * load.decode.rate >= decode * load.prefill.rate

    # Where both roles carry the same rate, and from there uphill; between equal ones the more even one stands.
    crossing = _first_true(line.lowest, line.highest, prefill_covers)
    best = max(range(max(line.lowest, crossing - 1), crossing + 1), key=lambda k: (model.cover(line.at(k), load), k))
    worth = _worth(line.at(best), model, load)
    value = worth(line.at(best))
    span = line.highest - line.lowest
    step = max(1, span // 16)
    while step > span // FINENESS:
        tried = [k for k in (best - step, best + step) if line.lowest <= k <= line.highest]
        higher = max((worth(line.at(k)), k) for k in tried) if tried else (value, best)
        if higher[0] > value:
            value, best = higher
        else:
            step //= 2
    return best


def _swapped(layout: Layout, flexible: Sequence[str], worth: Callable[[Layout], float]) -> Layout:
    """Return the layout with workers of two pools exchanged as long as that is worth more.

    Comparative advantage tells which pool gives up less, not whether one whole worker is enough: a slow GPU that
    decodes badly may still decode all that a fast one prefills.
    """
    pairs = list(permutations(flexible, 2))
    while True:
        prefill, decode = dict(layout.prefill), dict(layout.decode)
        swaps = [
            layout.plus(
                ((giver, Role.PREFILL, -1), (giver, Role.DECODE, 1), (taker, Role.DECODE, -1), (taker, Role.PREFILL, 1))
            )
            for giver, taker in pairs
            if prefill.get(giver) and decode.get(taker)
        ]
        better = max(swaps, key=worth, default=layout)
        if worth(better) <= worth(layout):
            return layout
        layout = better


def _worth(layout: Layout, model: PerformanceModel, load: Load) -> Callable[[Layout], float]:
    """Return what splits are compared by: with workers to spare all are equally good, and so a larger load tells.

    Where the promise is not kept, what matters is how many can be served within it.
    """
    if model.attainment(layout, load) < model.slo.attainment:
        return lambda split: model.goodput(split, load)
    larger = load.scaled(max(1.0, TUNING.usual_load * model.cover(layout, load)))
    return lambda split: model.attainment(split, larger)


def _first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first k in [low, high] for which `holds` (false before, true after it); high when there is none."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
