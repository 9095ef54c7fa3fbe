"""How fast this engine computes prompts, learnt from its own steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum_worker.fit import LEAST_EVEN_TOKENS

_KEPT: Final = 32
"""Steps that are remembered: enough for a fit of three coefficients, few enough to follow a machine that slows down."""
LEAST_TOKENS: Final = 64
"""Prompt tokens from which on a step tells something about prompts; shorter ones measure the step itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    start: int
    end: int
    seconds: float


class StepSpeed:
    """Seconds of an engine step that computes the tokens `start` to `end` of one prompt."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=_KEPT)
        self._single: deque[float] = deque(maxlen=_KEPT)
        self._fitted: SpeedCoefficients | None = None
        self._stale = False

    def learn(self, *, start: int, end: int, seconds: float) -> None:
        """Take note of a step with one prompt, or of one that computes a single token; others are left out.

        The latter tell what a step takes by itself, of which long prompts say little.
        """
        if seconds <= 0:
            return
        if end - start >= LEAST_TOKENS:
            self._steps.append(_Step(start=start, end=end, seconds=seconds))
            self._stale = True
        elif end - start == 1:
            self._single.append(seconds)

    def coefficients(self) -> SpeedCoefficients | None:
        """The fit over the last steps; None with fewer than two lengths, where nothing is known."""
        if self._stale and len({step.end - step.start for step in self._steps}) >= 2:
            self._stale = False
            rows = [(1.0, float(step.end - step.start), _even(step.end) - _even(step.start)) for step in self._steps]
            seconds = [step.seconds for step in self._steps]
            if self._single:
                rows.append((1.0, 1.0, _even(1)))
                seconds.append(median(self._single))
            constant, linear, even = fit_relative(rows, seconds)
            prefill = constant, linear + even, even / LEAST_EVEN_TOKENS
            self._fitted = SpeedCoefficients.of(prefill=prefill, decode=(0.0, 0.0, 0.0))
        return self._fitted


def _even(tokens: int) -> float:
    return tokens + tokens**2 / LEAST_EVEN_TOKENS
