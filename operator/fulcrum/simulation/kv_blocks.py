"""KV blocks of one worker, counted exactly without touching every request on every step."""

from __future__ import annotations

from fulcrum.simulation.prefix_cache import PrefixCache
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS


class KvBlocks:
    """Blocks in use, and by how many they grow over the steps to come.

    A decoding request takes a new block each time its context passes a multiple of the block size. Contexts grow by
    one per step, so `(context - step) mod block` never changes: counting requests per such phase tells the growth of
    any number of steps, exactly.
    """

    __slots__ = ("_block_tokens", "_phases", "batch", "cache", "capacity", "used")

    def __init__(self, *, capacity_tokens: int, block_tokens: int, cached: bool) -> None:
        self._block_tokens = block_tokens
        self._phases = [0] * block_tokens
        self.capacity = capacity_tokens // block_tokens
        self.used = 0
        self.batch = 0
        self.cache = PrefixCache(PREFIX_BLOCK_TOKENS // block_tokens) if cached else None

    def holds(self, tokens: int) -> bool:
        """Report whether a request of `tokens` would fit if it were alone."""
        return -(-tokens // self._block_tokens) <= self.capacity

    def take(self, request: SimulatedRequest) -> bool:
        """Reserve the blocks of `request.context`; False, and nothing changed, when they are not free.

        Sets `request.cached` to the tokens that the prefix cache has already; the last token is always computed.
        """
        block = self._block_tokens
        cache, ids = self.cache, request.prefix_ids
        if cache is None or not ids:
            blocks = -(-request.context // block)
            if self.used + blocks > self.capacity:
                return False
            request.cached = 0
            self.used += blocks
            return True
        whole = min(request.prompt // PREFIX_BLOCK_TOKENS, len(ids))
        private = -(-(request.context - whole * PREFIX_BLOCK_TOKENS) // block)
        if self.used + private + cache.unpinned_blocks(ids, whole) > self.capacity:
            return False
        hits = cache.hits(ids, min(whole, (request.context - 1) // PREFIX_BLOCK_TOKENS))
        request.cached = hits * PREFIX_BLOCK_TOKENS
        request.pinned = whole
        self.used += private + cache.pin(ids, whole)
        cache.evict(self.capacity - self.used)
        return True

    def blocks_of(self, request: SimulatedRequest, context: int) -> int:
        """Return the blocks that are the request's alone when its context is `context`."""
        return -(-(context - request.pinned * PREFIX_BLOCK_TOKENS) // self._block_tokens)

    def give_back(self, request: SimulatedRequest, blocks: int) -> None:
        """Free `blocks` of a request, and what it shares."""
        self.used -= blocks
        if request.pinned and self.cache is not None:
            self.used -= self.cache.unpin(request.prefix_ids, request.pinned)
        request.pinned = 0

    def join(self, context: int, step: int) -> None:
        """Count a request that takes part in decoding from `step` on, with `context` in its first step."""
        self._phases[(context - step) % self._block_tokens] += 1
        self.batch += 1

    def leave(self, context: int, step: int) -> None:
        """Take such a request out again; `context` is the one at `step`."""
        self._phases[(context - step) % self._block_tokens] -= 1
        self.batch -= 1

    def grow(self, step: int, steps: int) -> None:
        """Let the batch take `steps` steps, the first of which is number `step`."""
        block, phases = self._block_tokens, self._phases
        cycles, rest = divmod(steps, block)
        blocks = cycles * self.batch
        for at in range(step, step + rest):
            blocks += phases[-at % block]
        self.used += blocks
        if self.cache is not None:
            self.cache.evict(self.capacity - self.used)

    def steps_within(self, step: int, limit: int) -> int:
        """Return how many steps, up to `limit`, the batch can take from `step` before one needs more blocks."""
        block, phases, batch = self._block_tokens, self._phases, self.batch
        free = self.capacity - self.used
        if free >= batch * -(-limit // block):
            return limit
        cycles, free = divmod(free, batch)
        growths = cycles * block
        while (needed := phases[-(step + growths) % block]) <= free:
            free -= needed
            growths += 1
        return min(limit, growths + 1)
