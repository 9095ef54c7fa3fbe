"""How far predictions can be trusted."""

from __future__ import annotations

from math import exp, log
from typing import Final

from fulcrum.admission.tuning import TUNING

_SPREAD_WEIGHT: Final = 0.1
_OF_SPREAD: Final = 0.2
"""Steps are at most this share of how far samples lie from the margin, which must not move by more than they vary."""
_SMALL: Final = 0.1
"""Share of the promise that is added to latencies before they are compared, so that an error of a millisecond on a
latency of a millisecond does not count as a factor of two."""
_RECENT_REQUESTS: Final = 50
"""Memory of the mean error; and after so many rejections without a request that tells, the margin narrows: it could not
learn that it is too wide."""
_RELAX: Final = 0.01


class Margin:
    """How much longer than predicted a latency has to be expected to be: a quantile of actual over predicted.

    Stochastic approximation (Robbins and Monro, 1951), in the logarithm.
    """

    __slots__ = ("_level", "_silence", "_spread", "error", "factor", "samples")

    def __init__(self, level: float) -> None:
        """`level`: share, 0 to 1, of the requests at the very limit that is to be in time."""
        self._level = min(max(level, 0.5), 0.999)
        self._spread = TUNING.margin_rate / _OF_SPREAD
        """Mean distance of the last samples from the margin, in the logarithm."""
        self.factor = TUNING.first_margin
        """Actual over predicted latency to plan with."""
        self._silence = 0
        self.samples = 0
        self.error = 0.0
        """Mean of |actual - predicted| / actual over the last requests."""

    def allowed_seconds(self, promise_seconds: float) -> float:
        """The longest prediction with which a promise is still expected to be kept."""
        small = _SMALL * promise_seconds
        return (promise_seconds + small) / self.factor - small

    def learn(
        self,
        predicted_seconds: float,
        actual_seconds: float,
        promise_seconds: float,
        *,
        limit_seconds: float | None = None,
    ) -> None:
        """A latency that was predicted has come out.

        `limit_seconds`: what it may have become by requests that were let in later; then only those near the limit,
        and broken promises, tell how wrong the limit was.
        """
        if not (predicted_seconds >= 0 and actual_seconds > 0 and promise_seconds > 0):
            return
        self._silence = 0
        self.samples += 1
        small = _SMALL * promise_seconds
        weight = 1 / min(self.samples, _RECENT_REQUESTS)
        self.error += weight * (abs(actual_seconds - predicted_seconds) / max(actual_seconds, small) - self.error)
        if limit_seconds is not None:
            near = limit_seconds > TUNING.near * self.allowed_seconds(promise_seconds)
            if not near and actual_seconds <= promise_seconds:
                return
            predicted_seconds = limit_seconds
        above = log((actual_seconds + small) / (predicted_seconds + small) / self.factor)
        self._spread += _SPREAD_WEIGHT * (abs(above) - self._spread)
        rate = min(TUNING.margin_rate, _OF_SPREAD * self._spread)
        step = rate * (self._level if above > 0 else self._level - 1)
        self.factor = min(max(self.factor * exp(step), 1.0), TUNING.most_margin)

    def rejected(self) -> None:
        """A request was turned away for this latency."""
        self._silence += 1
        if self._silence > _RECENT_REQUESTS:
            self.factor = max(self.factor * exp(-_RELAX), 1.0)
