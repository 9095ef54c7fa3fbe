"""Which prompt prefixes are in the KV pool that all workers of a cluster share: a bounded memory of what was sent."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from math import inf


class PoolMemory:
    """Prefix keys, at most `capacity` of them, least recently used first out.

    A prefix is forgotten once more was computed since than the pool keeps. Nothing is kept while it has no room.
    """

    def __init__(self, capacity: int, ends: Sequence[int]) -> None:
        """`ends` are the prefixes' lengths in units."""
        self._capacity = capacity
        self._ends = ends
        self._computed = 0.0
        """Units of prompt that the pool was given, ever."""
        self._given_at: OrderedDict[int, float] = OrderedDict()
        self.room_units = 0.0
        """Units of prompt that it keeps; 0: there is no pool."""

    def record(self, keys: Sequence[int], computed_units: float) -> None:
        """Some worker was sent a prompt with these prefixes, and is to compute `computed_units` of it."""
        if not self.room_units:
            return
        computed = self._computed = self._computed + computed_units
        given_at = self._given_at
        for key in reversed(keys[: len(self._ends)]):
            given_at[key] = computed
            given_at.move_to_end(key)
        while len(given_at) > self._capacity:
            given_at.popitem(last=False)

    def held(self, keys: Sequence[int]) -> int:
        """Longest prefix that the pool holds, in units."""
        if not self.room_units:
            return 0
        oldest, given_at = self._computed - self.room_units, self._given_at
        count = bisect_left(
            keys, True, hi=min(len(keys), len(self._ends)), key=lambda key: given_at.get(key, -inf) < oldest
        )
        return self._ends[count - 1] if count else 0
