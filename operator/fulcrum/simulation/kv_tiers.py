"""KV below the engines' caches: host memory of each worker, and a pool that all workers share.

What is loaded of a prefix and what is computed is decided by the production code (`fulcrum.kv.restore`). Loads of one
worker go over its links one after the other. What is in the pool comes over the pool's link and then the host's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import How, Tiers, Waits, restore
from fulcrum.routing import prefill_left_seconds
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS

_AT_ONCE: Final = TransferCost(base_seconds=0.0, seconds_per_token=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTiers:
    """Sizes and links of the tiers; the same for all workers."""

    host_tokens: int = 0
    """Per worker; 0: no host memory."""
    host_link: TransferCost = _AT_ONCE
    pool_tokens: int = 0
    """Of all workers together; 0: no pool."""
    pool_link: TransferCost = _AT_ONCE
    """Of each worker."""
    front: bool = True
    """The front of a prefix may be computed while the rest is loaded (`policy: partialRecompute`)."""

    @property
    def reported(self) -> Tiers:
        """What the workers report of them."""
        host, pool = self.host_link, self.pool_link
        both = TransferCost(
            base_seconds=host.base_seconds + pool.base_seconds,
            seconds_per_token=host.seconds_per_token + pool.seconds_per_token,
        )
        return Tiers(
            host_tokens=self.host_tokens,
            host_link=host,
            pool_tokens=self.pool_tokens,
            pool_link=both if self.pool_tokens else None,
            front=self.front,
        )


class Blocks:
    """Prefix ids of one tier, the least recently used first."""

    def __init__(self, tokens: int) -> None:
        self._capacity = tokens // PREFIX_BLOCK_TOKENS
        self._held: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __len__(self) -> int:
        return len(self._held)

    def use(self, ids: Sequence[int]) -> None:
        """Hold these, as those used last; what does not fit any more is forgotten."""
        if not self._capacity:
            return
        for each in reversed(ids):  # the end of a chain is of no use without its beginning, and goes first
            self._held[each] = None
            self._held.move_to_end(each)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Restoring:
    """What is to be done for a prompt that begins now."""

    compute_until: int
    """Tokens up to which the prompt is computed while the rest of the match is loaded."""
    matched: int
    """Tokens that are there once it is loaded."""
    ends: float
    """When it is loaded."""


class WorkerTiers:
    """The tiers as one worker has them."""

    def __init__(
        self, tiers: KvTiers, pool: Blocks, speed: SpeedCoefficients, *, block_tokens: int, ttft_seconds: float
    ) -> None:
        """`ttft_seconds` is the promise: of the ways that keep it the one that computes least is taken."""
        self._tiers, self._pool, self._speed, self._block_tokens = tiers, pool, speed, block_tokens
        self._ttft_seconds = ttft_seconds
        self._host = Blocks(tiers.host_tokens)
        self._link_free = 0.0

    def store(self, request: SimulatedRequest) -> None:
        """Keep the KV of a prompt that was computed."""
        ids = request.prefix_ids[: request.prompt // PREFIX_BLOCK_TOKENS]
        self._host.use(ids)
        self._pool.use(ids)

    def begin(self, request: SimulatedRequest, now: float, *, ahead_tokens: int) -> Restoring | None:
        """Load what is worth it of a prompt of which `request.cached` tokens are in the engine's cache; None: nothing.

        `ahead_tokens` of begun prompts are computed first.
        """
        present = request.cached
        most = min(
            request.prompt // PREFIX_BLOCK_TOKENS, len(request.prefix_ids), (request.context - 1) // PREFIX_BLOCK_TOKENS
        )
        ids = list(islice(request.prefix_ids, present // PREFIX_BLOCK_TOKENS, most))
        count = next((at for at, each in enumerate(ids) if each not in self._host and each not in self._pool), len(ids))
        if not count:
            return None
        found = ids[:count]
        link = self._link(sum(each not in self._host for each in found) / count)
        matched = present + count * PREFIX_BLOCK_TOKENS
        way = restore(
            present_tokens=present,
            matched_tokens=matched,
            prompt_tokens=request.context,
            speed=self._speed,
            link=link,
            waits=Waits(
                link_seconds=max(self._link_free - now, 0.0),
                compute_seconds=ahead_tokens * self._speed.prefill_b,
            ),
            within_seconds=prefill_left_seconds(self._ttft_seconds, now - request.arrival_seconds),
            front=self._tiers.front,
            block_tokens=self._block_tokens,
        )
        if way.how is How.NONE:
            return None
        self._link_free = max(self._link_free, now) + link.seconds(way.load_tokens)
        used = [*request.prefix_ids[: present // PREFIX_BLOCK_TOKENS], *found]
        self._host.use(used)
        self._pool.use([each for each in used if each in self._pool])
        return Restoring(present + way.recompute_tokens, matched, self._link_free)

    def _link(self, from_pool: float) -> TransferCost:
        """Cost of a load of which this share comes from the pool."""
        host, pool = self._tiers.host_link, self._tiers.pool_link
        return TransferCost(
            base_seconds=host.base_seconds + (pool.base_seconds if from_pool else 0.0),
            seconds_per_token=host.seconds_per_token + from_pool * pool.seconds_per_token,
        )
