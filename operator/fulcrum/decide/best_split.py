"""Given workers, the roles in which they have most room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

from fulcrum.api.names import Role
from fulcrum.decide.pools import PoolBounds
from fulcrum.load.demand import Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout


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


def best_split(pools: Sequence[PoolBounds], workers: Mapping[str, int], model: FluidModel, load: Load) -> Layout:
    """Return the split of `workers` whose scarcer role has most room; where they cannot be divided, all do both.

    It is incomplete where a role is left without a worker.
    """
    line = _line(pools, workers, model, load)
    if line.lowest > line.highest:
        return line.all_mixed() if line.mixes else Layout()
    return _improved(_most_even(line, model, load), [pool for pool, _ in line.flexible], model, load)


def _line(pools: Sequence[PoolBounds], workers: Mapping[str, int], model: FluidModel, load: Load) -> _Line:
    having = {role: {r.name: workers[r.name] for r in pools if r.role is role and workers[r.name]} for role in _KINDS}
    flexible = sorted(having[None].items(), key=lambda item: -model.advantage(item[0], Role.PREFILL, load))
    return _Line(
        prefill=having[Role.PREFILL],
        decode=having[Role.DECODE],
        mixed=having[Role.MIXED],
        flexible=tuple(flexible),
        mixes=all(pool.mixes for pool in pools if pool.name in having[None]) or sum(workers.values()) == 1,
    )


_KINDS: Final = (Role.PREFILL, Role.DECODE, Role.MIXED, None)


def _most_even(line: _Line, model: FluidModel, load: Load) -> Layout:
    """Return the split whose scarcer role has most room: near where both have the same."""
    needed = model.needed(load)

    def prefill_covers(k: int) -> bool:
        layout = line.at(k)
        prefill, decode = (model.role_rate(layout, load, role) for role in (Role.PREFILL, Role.DECODE))
        return prefill * needed[Role.DECODE] >= decode * needed[Role.PREFILL]

    crossing = _first_true(line.lowest, line.highest, prefill_covers)
    tried = range(max(line.lowest, crossing - 1), crossing + 1)
    return line.at(max(tried, key=lambda k: (model.room(line.at(k), load), k)))


def _improved(layout: Layout, flexible: Sequence[str], model: FluidModel, load: Load) -> Layout:
    """Return the layout after changes of a worker or two, of one pool or of two of them, as long as there is more room.

    Comparative advantage tells which pool gives up less, not whether whole workers are enough: a slow GPU that decodes
    badly may still decode all that a fast one prefills.
    """
    while True:
        changes = [
            ((pool, left, -count), (pool, taken, count))
            for pool in flexible
            for left, taken in permutations((Role.PREFILL, Role.DECODE))
            for count in (1, 2)
            if layout.in_pool(pool).get(left, 0) >= count
        ]
        further = [layout.plus(change) for change in changes]
        further += [layout.plus((*one, *other)) for one, other in combinations(changes, 2) if one[0][0] != other[0][0]]
        better = max(further, key=lambda each: model.room(each, load), default=layout)
        if model.room(better, load) <= model.room(layout, load):
            return layout
        layout = better


def _first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first k in [low, high] for which `holds` (false before, true after it); high when there is none."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
