"""The history that a forecast is made from: request rate and lengths, interval by interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadSeries:
    """Load per interval, oldest first; NaN is a gap (not measured), which is not the same as zero.

    All three arrays have one element per interval; element `i` covers
    `(end_seconds - (n - i) * interval_seconds, end_seconds - (n - i - 1) * interval_seconds]`.
    """

    interval_seconds: float
    end_seconds: float
    """End of the last interval, in the clock of the caller (Unix time in production, virtual time in simulation)."""
    rate: NDArray[np.float64]
    """Requests per second that arrived, also the ones that were turned away."""
    isl_tokens: NDArray[np.float64]
    """Mean prompt tokens per request; NaN also where no request arrived."""
    osl_tokens: NDArray[np.float64]
    """Mean output tokens per request; NaN also where no request ended."""

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.rate)
