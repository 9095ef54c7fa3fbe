"""Which of several clusters a new conversation goes to: smooth weighted round robin, led by a hash where both agree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import log
from typing import Final

TOLERANCE: Final = 1.0
"""Requests by which a cluster may be ahead of its share, or behind it, for a new conversation to follow its hash.

Several fronts that know nothing of each other agree on the hash. At 90:10 it decides on nine conversations of ten."""
_MOST_OWED: Final = 16.0
"""Requests that a share can be behind or ahead at most: after one long conversation on a canary, the other clusters do
not get everything for an hour."""
_HASH_BYTES: Final = 8


class Shares:
    """Weights of clusters, and how many requests each one is behind its share."""

    __slots__ = ("_owed", "_steps", "_total", "_weights")

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights: dict[str, int] = {}
        self._total = 0
        self._owed: dict[str, float] = {}
        self._steps: dict[str, float] = {}
        """What each request adds to what a cluster with a weight is owed."""
        self.weigh(weights)

    def weigh(self, weights: Mapping[str, int]) -> None:
        """These are the clusters and weights from now on. Clusters that stay keep what they are owed."""
        self._weights = dict(weights)
        self._total = sum(weights.values())
        self._steps = {name: weight / self._total for name, weight in weights.items() if weight > 0}
        self._owed = {name: self._owed.get(name, 0.0) for name in weights}

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def pick(self, opening: bytes | None) -> str | None:
        """The cluster of a new conversation, by the digest of how it opens; None: every cluster has weight 0.

        The share of a cluster is kept to within two requests. Call `count` with the result.
        """
        if len(self._steps) < 2:
            return next(iter(self._steps), None)
        behind = {name: self._owed[name] + step for name, step in self._steps.items()}
        most = max(behind, key=behind.__getitem__)
        if opening is None:
            return most
        led = self.led_to(opening)
        fair = led is not None and behind[led] - 1.0 >= -TOLERANCE
        return led if fair and (led == most or behind[most] <= TOLERANCE) else most

    def led_to(self, opening: bytes) -> str | None:
        """The cluster that the hash of a conversation leads to, with its weight as probability.

        A changed weight moves as few conversations as can be (weighted rendezvous hashing). None: every weight is 0.
        """
        weighted = [(_distance(opening, name, weight), name) for name, weight in self._weights.items() if weight > 0]
        return min(weighted)[1] if weighted else None

    def count(self, served: str) -> None:
        """A request goes to `served`."""
        if not self._total or served not in self._owed or len(self._owed) == 1:
            return
        for name, weight in self._weights.items():
            owed = self._owed[name] + weight / self._total - (name == served)
            self._owed[name] = min(max(owed, -_MOST_OWED), _MOST_OWED)


def _distance(opening: bytes, name: str, weight: int) -> float:
    digest = hashlib.blake2b(opening + name.encode(), digest_size=_HASH_BYTES).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (256**_HASH_BYTES + 1)
    return -log(uniform) / weight
