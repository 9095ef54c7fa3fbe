"""What every forecast method is: something fitted once, advanced interval by interval, asked for a path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_INTERVALS: Final = 12
"""Of fewer measured intervals, or errors of a back-test, a model or a quantile says only what chance made of them."""
WINDOW_INTERVALS: Final = 576
"""The newest part of a history that models are fitted to, in intervals: their few parameters need no more, and the time
of a fit grows with it. Two days of five minutes."""
LEAST_SPREAD: Final = 1e-6
"""A history, on the log scale, that varies less is constant: what is left of it is rounding."""


class FitError(Exception):
    """A model could not be fitted to a history that is long enough for it; the message says why."""


class Model(Protocol):
    """A fitted method with its state at the end of the history."""

    def advance(self, rate: float) -> None:
        """Take in the next interval's requests per second; NaN is a gap."""

    def path(self, steps: int) -> Floats:
        """Expected requests per second of the next `steps` intervals; never negative, never NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Time that a fit may take, by a clock of the caller."""

    clock: Callable[[], float]
    deadline_seconds: float

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self.clock() > self.deadline_seconds

    def check(self, *_: object) -> None:
        """Raise FitError when the time is used up; takes and ignores what optimizers pass to their callbacks."""
        if self.over:
            raise FitError("over its time budget")


class Fit(Protocol):
    """How a method is fitted."""

    def __call__(self, rate: Floats, *, season_intervals: float, budget: Budget) -> Model | None:
        """Fit to `rate` (requests per second, oldest first, NaN is a gap; at least one value is measured).

        None when the history is too short or too plain for this method. Raises FitError.
        """
