"""How much of what a pool prefilled went to which decode pool, against the shares that the operator published. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fulcrum.routing.tuning import TUNING

Shares = Mapping[str, Mapping[str, float]]
"""By prefill pool and decode pool; those of a prefill pool sum to 1."""


def shares_of(routes: Iterable[tuple[str, str, float]]) -> Shares:
    """Return the shares of (prefill pool, decode pool, weight); what is no weight from 0 to 1 is dropped."""
    found: dict[str, dict[str, float]] = {}
    for source, target, weight in routes:
        if source and target and 0.0 <= weight <= 1.0:
            found.setdefault(source, {})[target] = weight
    sums = {source: sum(weights.values()) for source, weights in found.items()}
    return {
        source: {pool: weight / sums[source] for pool, weight in weights.items()}
        for source, weights in found.items()
        if sums[source] > 0
    }


class KvRoutes:
    """Published shares and those sent, by pool of the prefill and of the decode worker."""

    def __init__(self) -> None:
        self.wanted: Shares = {}
        self._sent: dict[str, dict[str, float]] = {}

    def set(self, wanted: Shares) -> None:
        """Take the shares that each prefill pool's KV is to be split by; pools that are not named are free."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._sent = {source: dict(shares) for source, shares in wanted.items()}

    def sent(self, prefill: str, decode: str) -> None:
        """One request went this way."""
        shares = self._sent.get(prefill)
        if shares is None:
            return
        rate = 1 / TUNING.recent_requests
        for pool in shares:
            shares[pool] *= 1 - rate
        shares[decode] = shares.get(decode, 0.0) + rate

    def excess(self, prefill: str, decode: str) -> float:
        """Return by which share, 0 to 1, more than wanted went this way lately; 0 where no share is published."""
        wanted = self.wanted.get(prefill)
        if wanted is None or decode not in wanted:
            return 0.0
        return max(self._sent[prefill].get(decode, 0.0) - wanted[decode], 0.0)
