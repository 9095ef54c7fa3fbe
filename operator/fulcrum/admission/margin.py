"""How far predictions can be trusted."""

from __future__ import annotations

from math import exp, log

from fulcrum.admission.tuning import TUNING
from fulcrum.routing.tuning import TUNING as ROUTING


class Margin:
    """How much longer than predicted a latency has to be expected to be: a quantile of actual over predicted.

    Stochastic approximation (Robbins and Monro, 1951), in the logarithm.
    """

    __slots__ = ("_level", "_silence", "_spread", "error", "factor", "samples")

    def __init__(self, level: float) -> None:
        """`level`: share, 0 to 1, of the requests at the very limit that is to be in time."""
        self._level = min(max(level, 0.5), 0.999)
        self._spread = TUNING.margin_rate / TUNING.of_spread
        """Mean distance of the last samples from the margin, in the logarithm."""
        self.factor = TUNING.first_margin
        """Actual over predicted latency to plan with."""
        self._silence = 0
        self.samples = 0
        self.error = 0.0
        """Mean of |actual - predicted| / actual over the last requests."""

    def allowed_seconds(self, promise_seconds: float) -> float:
        """The longest prediction with which a promise is still expected to be kept."""
        small = TUNING.latency_floor * promise_seconds
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
        small = TUNING.latency_floor * promise_seconds
        weight = 1 / min(self.samples, TUNING.recent_requests)
        self.error += weight * (abs(actual_seconds - predicted_seconds) / max(actual_seconds, small) - self.error)
        if limit_seconds is not None:
            near = limit_seconds > ROUTING.early * self.allowed_seconds(promise_seconds)
            if not near and actual_seconds <= promise_seconds:
                return
            predicted_seconds = limit_seconds
        above = log((actual_seconds + small) / (predicted_seconds + small) / self.factor)
        self._spread += TUNING.of_spread / 2 * (abs(above) - self._spread)
        rate = min(TUNING.margin_rate, TUNING.of_spread * self._spread)
        step = rate * (self._level if above > 0 else self._level - 1)
        self.factor = min(max(self.factor * exp(step), 1.0), ROUTING.most_wrong)

    def rejected(self) -> None:
        """A request was turned away for this latency; after many in a row the margin narrows: it cannot learn more."""
        self._silence += 1
        if self._silence > TUNING.recent_requests:
            self.factor = max(self.factor * exp(-ROUTING.mean_rate), 1.0)
