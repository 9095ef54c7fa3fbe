"""Which pairs of workers can move KV: what canaries found, and when a failing pair is tried again. Pure.

A pair is a prefill worker and a decode worker that pulls from it. Pairs that were not tried are taken for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fulcrum.routing.tuning import TUNING

Pair = tuple[str, str]
"""Names of the prefill worker and of the decode worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A pair whose last canaries failed."""

    failures: int
    """In a row."""
    since_seconds: float
    """Clock time of the first of them."""
    retest_at_seconds: float
    why: str


class PairHealth:
    """Results of canaries by pair."""

    def __init__(self) -> None:
        self.failing: dict[Pair, Failing] = {}
        self._working: set[Pair] = set()

    def worked(self, pair: Pair) -> bool:
        """KV crossed. Returns whether the pair had been failing."""
        self._working.add(pair)
        return self.failing.pop(pair, None) is not None

    def failed(self, pair: Pair, now_seconds: float, why: str) -> bool:
        """KV did not cross. Returns whether the pair had been good."""
        self._working.discard(pair)
        before = self.failing.get(pair)
        failures = 1 if before is None else before.failures + 1
        self.failing[pair] = Failing(
            failures=failures,
            since_seconds=now_seconds if before is None else before.since_seconds,
            # Two doublings longer than a worker's: three failures restart it, and networks fail for seconds.
            retest_at_seconds=now_seconds + TUNING.pause_seconds(failures + 2),
            why=why,
        )
        return before is None

    def forget(self, worker: str) -> bool:
        """The worker is gone, or another process has its name. Returns whether any of its pairs had been failing."""
        failing = len(self.failing)
        self.failing = {pair: found for pair, found in self.failing.items() if worker not in pair}
        self._working = {pair for pair in self._working if worker not in pair}
        return len(self.failing) < failing

    def due(self, now_seconds: float) -> Iterator[Pair]:
        """Failing pairs that are to be tried again."""
        return (pair for pair, found in self.failing.items() if found.retest_at_seconds <= now_seconds)

    def pulled_from(self, prefill: str) -> int:
        """Workers that pulled from this one when they were last tried."""
        return sum(pair[0] == prefill for pair in self._working)

    def pulls_from(self, decode: str) -> int:
        """Workers that this one pulled from when it was last tried."""
        return sum(pair[1] == decode for pair in self._working)
