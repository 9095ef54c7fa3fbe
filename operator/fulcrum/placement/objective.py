"""What a search looks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf


class Goal(StrEnum):
    """As the command line names them."""

    MOST_GOODPUT = "most-goodput"
    LEAST_PRICE = "least-price"
    """At a rate that must be carried."""
    BEST_RATIO = "best-ratio"
    """Goodput per price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """How two placements compare: `score` is higher for the better one."""

    least_rate: float | None = None
    """Requests/s that are enough: beyond it only the price counts. None: more is always better."""
    most_price: float = inf
    """Price per hour that must not be exceeded."""

    def score(self, rate: float, price: float, scale: float) -> float:
        """Return a figure of merit; `scale` is the price of everything (or 1), so that money only breaks ties."""
        if price > self.most_price * (1 + 1e-9):
            return -inf
        if self.least_rate is None:
            return rate * (1 - 1e-6 * price / scale)
        return min(rate / self.least_rate, 1.0) * 1e3 - price / scale
