"""A prefill whose KV no decode worker has begun to pull, so that another one may."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.workers.registry import KnownRank

USABLE_SECONDS: Final = 15.0
"""Half of the lease (30 s) for which an engine holds KV for a peer: the pull must have begun before it is over."""


class HeldPrefill(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefill leg of a request returned."""

    rank: KnownRank
    """The rank of the engine process that holds the KV; a restarted one has others."""
    kv: Raw
    done_at: float
    """Loop time."""

    def usable(self, now: float) -> bool:
        """Whether the KV is certainly still there (loop time)."""
        return now < self.done_at + USABLE_SECONDS
