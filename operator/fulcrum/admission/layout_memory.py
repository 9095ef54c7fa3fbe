"""How much of what was learnt under an earlier layout still holds: as much as there are workers that do the same work.

Margins say how wrong predictions were for a batch, or a queue, on these workers. After a flip both are others, and a
margin that a bad minute left behind would go on turning requests away that the new layout serves in time.
"""

from __future__ import annotations

from collections import deque

from fulcrum.api.admission_state import LayoutChange, LayoutState
from fulcrum.routing.tuning import TUNING as ROUTING


class LayoutMemory:
    """Of the workers of one kind of work: what stayed the same since when."""

    __slots__ = ("_changes", "_workers")

    def __init__(self) -> None:
        self._workers: frozenset[str] | None = None
        self._changes: deque[tuple[float, float]] = deque(maxlen=ROUTING.recent_requests)

    def kept(self, workers: frozenset[str], now_seconds: float) -> float:
        """Share of what was learnt, 0 to 1, that holds for `workers`, which do this work from now on; 1: no change."""
        if workers is self._workers or workers == self._workers:
            return 1.0
        before, self._workers = self._workers, workers
        if before is None:
            return 1.0
        share = len(workers & before) / len(workers | before)
        self._changes.append((now_seconds, share))
        return share

    def kept_since(self, began_seconds: float) -> float:
        """Share of what a request that began then can teach that holds for the present workers."""
        share = 1.0
        for changed_seconds, kept in reversed(self._changes):
            if changed_seconds <= began_seconds:
                break
            share *= kept
        return share

    def state(self, now_seconds: float) -> LayoutState:
        """Return what a copy begins from."""
        workers = None if self._workers is None else tuple(sorted(self._workers))
        return LayoutState(
            workers, tuple([LayoutChange(max(now_seconds - at, 0.0), kept) for at, kept in self._changes])
        )

    def begin_with(self, state: LayoutState, now_seconds: float) -> None:
        """Go on from what another one has seen."""
        self._workers = None if state.workers is None else frozenset(state.workers)
        self._changes.clear()
        self._changes.extend([(now_seconds - each.age_seconds, each.kept) for each in state.changes])
