"""Blocks of prompts, from the keys of their prefixes that a gateway recorded."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from fulcrum.api.record import RecordedRequest
from fulcrum.simulation.traffic.mooncake import PREFIX_BLOCK_TOKENS


class RecordedBlocks:
    """Ids of the blocks of 512 tokens that prompts begin with.

    Prefixes are known at some lengths only. A block is shared where the next known prefix behind its end is, so what
    two prompts have in common is never overstated. How many tokens a prefix has is settled by the first prompt with it.
    """

    def __init__(self, key_ends: Sequence[int]) -> None:
        """`key_ends`: lengths of the prefixes whose keys requests have, in units of their prompts."""
        self._key_ends = key_ends
        self._known: dict[int, tuple[int, range]] = {}
        """By prefix key: blocks that end within the prefix, and the ids of those that the shorter ones lack."""
        self._next = 0

    def of(self, request: RecordedRequest) -> tuple[int, ...]:
        """Return the ids of all blocks of a prompt, the last one filled in part."""
        count = ceil(max(request.prompt_tokens, 1) / PREFIX_BLOCK_TOKENS)
        tokens_per_unit = request.prompt_tokens / max(request.units, 1)
        ids: list[int] = []
        whole = 0
        for key, end in zip(request.keys, self._key_ends, strict=False):
            known = self._known.get(key)
            if known is None:
                blocks = max(min(int(end * tokens_per_unit), request.prompt_tokens) // PREFIX_BLOCK_TOKENS, whole)
                known = self._known[key] = (blocks, self._new(blocks - whole))
            whole = known[0]
            ids += known[1]
        del ids[count:]
        ids += self._new(count - len(ids))
        return tuple(ids)

    def _new(self, count: int) -> range:
        begin, self._next = self._next, self._next + count
        return range(begin, self._next)
