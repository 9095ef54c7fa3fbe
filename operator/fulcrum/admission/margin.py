"""How far predictions can be trusted."""

from __future__ import annotations

from math import exp

from fulcrum.admission.tuning import TUNING
from fulcrum.api.admission_state import MarginState
from fulcrum.routing.tuning import TUNING as ROUTING


class Margin:
    """How much longer than predicted a latency has to be expected to be: a quantile of actual over predicted.

    Stochastic approximation (Robbins and Monro, 1951), in the logarithm.
    """

    __slots__ = ("_level", "_silence", "error", "factor", "samples")

    def __init__(self, level: float) -> None:
        """`level`: share, 0 to 1, of the requests at the very limit that is to be in time."""
        self._level = level
        self.factor = 1.0
        """Actual over predicted latency to plan with."""
        self._silence = 0
        self.samples = 0
        self.error = 0.0
        """Mean of |actual - predicted| over the longer of both, of the last requests."""

    def allowed_seconds(self, promise_seconds: float) -> float:
        """The longest prediction with which a promise is still expected to be kept."""
        return promise_seconds / self.factor

    def learn(
        self,
        predicted_seconds: float,
        actual_seconds: float,
        promise_seconds: float,
        *,
        limit_seconds: float | None = None,
        weight: float = 1.0,
    ) -> None:
        """A latency that was predicted has come out.

        `limit_seconds`: what it may have become by requests that were let in later; by default what was predicted.
        Only requests near the limit, and broken promises, tell how wrong the limit was. `weight`, 0 to 1: how much of
        that the workers of now have to do with.
        """
        if not (predicted_seconds > 0 and actual_seconds > 0 and promise_seconds > 0):
            return
        self._silence = 0
        self.samples += 1
        part = 1 / min(self.samples, ROUTING.recent_requests)
        off = abs(actual_seconds - predicted_seconds) / max(actual_seconds, predicted_seconds)
        self.error += part * (off - self.error)
        limit_seconds = predicted_seconds if limit_seconds is None else limit_seconds
        near = limit_seconds > ROUTING.estimate_share * self.allowed_seconds(promise_seconds)
        if near or actual_seconds > promise_seconds:
            late = actual_seconds > self.factor * limit_seconds
            self._step(weight * (self._level if late else self._level - 1))

    def rejected(self) -> None:
        """A request was turned away for this latency; after many in a row the margin narrows: it cannot learn more."""
        self._silence += 1
        if self._silence > ROUTING.recent_requests:
            self._step(-1.0)

    def keep(self, share: float) -> None:
        """Only so much of what was learnt, 0 to 1, still holds."""
        self.factor **= share

    def state(self) -> MarginState:
        """Return what a copy begins from."""
        return MarginState(factor=self.factor, error=self.error, samples=self.samples, silence=self._silence)

    def begin_with(self, state: MarginState) -> None:
        """Go on from what another one has learnt."""
        self.factor = min(state.factor, ROUTING.most_wrong)
        self.error, self.samples, self._silence = state.error, state.samples, state.silence

    def _step(self, share: float) -> None:
        self.factor = min(max(self.factor * exp(share * TUNING.margin_rate), 1.0), ROUTING.most_wrong)
