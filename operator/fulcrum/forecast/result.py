"""What a forecast says."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.types import ForecastMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Load of the intervals to come; never negative, never NaN.

    All tuples have one element per step; step `i` is the interval that ends `(i + 1) * interval_seconds` after the
    end of the series.
    """

    method: ForecastMethod
    """What was used; never `auto`."""
    interval_seconds: float
    quantile: float
    """Quantile of `upper_rate`, between 0 and 1."""
    rate: tuple[float, ...]
    """Expected requests per second."""
    upper_rate: tuple[float, ...]
    """Requests per second at `quantile`; never below `rate`."""
    isl_tokens: tuple[float, ...] | None
    """Expected prompt tokens per request; None while no request has been seen."""
    osl_tokens: tuple[float, ...] | None
    """Expected output tokens per request; None while no request has ended."""
    error: float | None = None
    """Weighted MAPE of this method at the horizon over the back-test; None while there was none."""
    error_against_last_value: float | None = None
    """The same error as a share of last value's: below 1 is better than last value."""

    @property
    def horizon_seconds(self) -> float:
        """Return how far the forecast reaches."""
        return len(self.rate) * self.interval_seconds
