"""How fast KV comes back over a link, learnt from loads that were seen."""

from __future__ import annotations

from fulcrum.capacity.kv import TransferCost

_FORGET = 0.8
"""Weight that each new load leaves to those before it: a link that changed is known to 10 % after ten loads."""


class LinkRate:
    """Seconds per token of one link, from a prior and from what loads took.

    The cost of a load is `base_seconds + seconds_per_token * tokens`. The base stays that of the prior: single loads
    cannot tell it from the rate.
    """

    def __init__(self, prior: TransferCost) -> None:
        """Begin at `prior`, which counts as one load of the size of the first one that is seen."""
        self._prior = prior
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, *, tokens: int, seconds: float) -> None:
        """Take note of a load. What cannot be (no tokens, no time, NaN) is left out."""
        beyond_base = seconds - self._prior.base_seconds
        if not (tokens > 0 and 0 < beyond_base < float("inf")):
            return
        if self._tokens == 0:
            self._tokens, self._seconds = float(tokens), tokens * self._prior.seconds_per_token
        self._tokens = _FORGET * self._tokens + (1 - _FORGET) * tokens
        self._seconds = _FORGET * self._seconds + (1 - _FORGET) * beyond_base

    def predict(self) -> TransferCost:
        """Return what the next load should cost."""
        if self._tokens == 0:
            return self._prior
        return TransferCost(base_seconds=self._prior.base_seconds, seconds_per_token=self._seconds / self._tokens)
