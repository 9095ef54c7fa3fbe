"""A quantile of a stream of positive numbers, kept in one number."""

from __future__ import annotations

from math import exp
from typing import Final

_FASTEST: Final = 0.5
_FIRST_SAMPLES: Final = 40


class OnlineQuantile:
    """Stochastic approximation of the quantile `level` (Robbins and Monro, 1951), in the logarithm: steps are relative.

    Steps shrink over the first samples and then stay, so that it follows a stream that changes.
    """

    __slots__ = ("_high", "_low", "_rate", "level", "samples", "value")

    def __init__(self, level: float, initial: float, *, low: float, high: float, rate: float = 0.05) -> None:
        if not (0 < level < 1 and 0 < low <= initial <= high):
            raise ValueError("need 0 < level < 1 and 0 < low <= initial <= high")
        self.level = level
        self.value = initial
        self.samples = 0
        self._low = low
        self._high = high
        self._rate = rate

    def add(self, sample: float) -> None:
        """One more number of the stream."""
        self.samples += 1
        rate = max(self._rate, _FASTEST * (1 - self.samples / _FIRST_SAMPLES))
        self._move(rate * (self.level if sample > self.value else self.level - 1))

    def lower(self, by: float) -> None:
        """Lower the estimate by the share `by` without a sample."""
        self._move(-by)

    def _move(self, log_step: float) -> None:
        self.value = min(max(self.value * exp(log_step), self._low), self._high)
