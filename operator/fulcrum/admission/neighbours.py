"""How much slower a worker is while others on its node work: engines that share cores (or a bus) share their speed.

What is measured of one worker, and what is learnt of its pool on average, holds for none of these moments: with four
engines on two cores a prefill took 0.36 s beside idle ones and 2.2 s beside three busy ones. So the time that first
tokens took beyond their prediction is put down to the workers that were busy then: one figure, seconds per predicted
second and busy neighbour. It is the mean; `Margin` covers the spread around it. On workers with hardware of their own
it stays near zero, and nothing changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fulcrum.api.admission_state import BusySample
from fulcrum.routing.tuning import TUNING


class NeighbourSlowdown:
    """Learns from each first token.

    What is older than the longest pause is forgotten, so that a cluster that turned all requests away tries again.
    """

    __slots__ = ("_samples", "per_neighbour")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=TUNING.recent_requests)
        self.per_neighbour = 0.0
        """By which share each busy neighbour makes a first token later; 0 where none is felt."""

    def factor(self, busy: int, now_seconds: float) -> float:
        """How many times longer than predicted a first token takes beside `busy` workers; exactly 1 if not at all."""
        if not busy or not self._samples:
            return 1.0
        if self._samples[0][0] < now_seconds - TUNING.longest_pause_seconds:
            self._forget(now_seconds)
        return 1.0 + busy * self.per_neighbour

    def learn(self, ratio: float, busy: int, now_seconds: float) -> None:
        """A first token beside `busy` workers took `ratio` times what was predicted."""
        if not busy or not ratio >= 0:
            return
        # A hang is no slow-down.
        self._samples.append((now_seconds, min(ratio - 1.0, busy * (TUNING.most_wrong - 1.0)), busy))
        self._forget(now_seconds)

    def state(self, now_seconds: float) -> tuple[BusySample, ...]:
        """Return what a copy begins from."""
        return tuple([BusySample(max(now_seconds - at, 0.0), more, busy) for at, more, busy in self._samples])

    def begin_with(self, state: Sequence[BusySample], now_seconds: float) -> None:
        """Go on from what another one has learnt."""
        self._samples.clear()
        self._samples.extend([(now_seconds - each.age_seconds, each.slower, each.busy) for each in state])
        self._forget(now_seconds)

    def _forget(self, now_seconds: float) -> None:
        while self._samples and self._samples[0][0] < now_seconds - TUNING.longest_pause_seconds:
            self._samples.popleft()
        # Least squares for `ratio = 1 + per_neighbour * busy`.
        slower = sum(more * busy for _, more, busy in self._samples)
        found = slower / sum(busy * busy for _, _, busy in self._samples) if self._samples else 0.0
        # Less than estimates may be wrong by is no slow-down.
        self.per_neighbour = found if TUNING.estimate_share * (1.0 + found) >= 1.0 else 0.0
