"""The scale that models work in: log1p of the rate as a multiple of its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fulcrum.forecast.model import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """`z = log1p(rate / mean)`: errors near zero count as they are, large ones in proportion, whatever the unit."""

    mean: float

    @classmethod
    def of(cls, rate: Floats) -> Self:
        """The scale of a history with at least one measured value."""
        mean = float(np.nanmean(rate))
        return cls(mean=mean if mean > 0 else 1.0)

    def forward(self, rate: Floats) -> Floats:
        """From requests per second; NaN stays."""
        return np.log1p(rate / self.mean)

    def backward(self, z: Floats) -> Floats:
        """To requests per second, never negative, never infinite."""
        return self.mean * np.expm1(np.clip(z, 0.0, 30.0))  # beyond any load, and far below what overflows
