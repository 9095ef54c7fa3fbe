"""What a rehearsal says of the requests to come."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from fulcrum.rehearsal.difference import Floats, share_error


class Course(NamedTuple):
    """Requests to come, as one draw was played."""

    after_seconds: tuple[float, ...]
    """When they come, after the rehearsal."""
    inside: tuple[bool, ...]
    """Whether each is inside the promise."""

    def share(self, seconds: float) -> float:
        """Return the expected share inside of what comes in the next `seconds`.

        Requests that are played are those of the past in their old order, which says nothing about what comes first.
        So the share of the first ones counts only as far as chance does not explain how it differs from that of all
        (James and Stein, 1961: the positive part).
        """
        inside, after_seconds = self._columns()
        share, first = float(inside.mean()), inside[after_seconds < seconds]
        apart = float(first.mean()) - share if len(first) else 0.0
        if not apart:
            return share
        per_request = self.error**2 * len(inside)
        chance = per_request * (1 / len(first) - 1 / len(inside))
        return share + max(0.0, 1 - chance / apart**2) * apart

    @property
    def error(self) -> float:
        """Standard error of the share of all."""
        inside, after_seconds = self._columns()
        return share_error(inside, after_seconds)

    def _columns(self) -> tuple[Floats, Floats]:
        return np.array(self.inside, dtype=np.float64), np.array(self.after_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What comes of the requests to come under the layout that was chosen."""

    draws: tuple[Course, ...]
    """Those that were played of it."""
    off: float
    """Share of them by which plays of this layout were off; to be added."""
    off_error: float = 0.0
    """Standard error of it."""

    @property
    def error(self) -> float:
        """Standard error of the share inside: draws have the same arrivals, whose luck does not average out."""
        return sqrt(sum(each.error**2 for each in self.draws) / len(self.draws) + self.off_error**2)

    @property
    def requests(self) -> float:
        """Of a draw."""
        return sum(len(each.inside) for each in self.draws) / len(self.draws)

    def inside(self, seconds: float) -> float:
        """Return the share inside the promise of what comes in the next `seconds`."""
        share = sum(each.share(seconds) for each in self.draws) / len(self.draws) + self.off
        return min(max(share, 0.0), 1.0)
