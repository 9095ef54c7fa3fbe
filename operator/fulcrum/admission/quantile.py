"""A quantile of a stream of positive numbers, kept in one number."""

from __future__ import annotations

from math import exp, log
from typing import Final

_FIRST_SAMPLES: Final = 40
_SPREAD_RATE: Final = 0.1
_OF_SPREAD: Final = 0.1
"""Steps are at most this share of how far samples lie from the estimate: it must not move by more than they vary."""


class OnlineQuantile:
    """Stochastic approximation of the quantile `level` (Robbins and Monro, 1951), in the logarithm: steps are relative.

    Steps of up to `rate` let it follow a stream that changes; of a stream that hardly varies they are as small as that.
    Over the first samples they shrink from `first_rate`, which is large where `initial` is a mere guess.
    """

    __slots__ = ("_first_rate", "_high", "_low", "_rate", "_spread", "level", "samples", "value")

    def __init__(
        self, level: float, initial: float, *, low: float, high: float, rate: float = 0.05, first_rate: float = 0.5
    ) -> None:
        if not (0 < level < 1 and 0 < low <= initial <= high):
            raise ValueError("need 0 < level < 1 and 0 < low <= initial <= high")
        self.level = level
        self.value = initial
        self.samples = 0
        self._low = low
        self._high = high
        self._rate = rate
        self._spread = rate / _OF_SPREAD
        """Mean distance of the last samples from the estimate, in the logarithm."""
        self._first_rate = first_rate

    def add(self, sample: float) -> None:
        """One more number of the stream."""
        self.samples += 1
        above = log(sample / self.value)
        self._spread += _SPREAD_RATE * (abs(above) - self._spread)
        rate = min(self._rate, _OF_SPREAD * self._spread)
        rate = max(rate, self._first_rate * (1 - self.samples / _FIRST_SAMPLES))
        self._move(rate * (self.level if above > 0 else self.level - 1))

    def lower(self, by: float) -> None:
        """Lower the estimate by the share `by` without a sample."""
        self._move(-by)

    def _move(self, log_step: float) -> None:
        self.value = min(max(self.value * exp(log_step), self._low), self._high)
