"""Prefix cache of one worker: prompt blocks by id, kept after use until another request needs the room (LRU)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice


class PrefixCache:
    """Blocks of prompts that are in use (pinned) or idle; idle ones live in KV that is free otherwise."""

    __slots__ = ("_blocks_per_id", "_idle", "_pins")

    def __init__(self, blocks_per_id: int) -> None:
        self._blocks_per_id = blocks_per_id
        self._pins: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    def hits(self, ids: Sequence[int], limit: int) -> int:
        """Return how many of the first `limit` ids are cached in one run from the start."""
        for count in range(limit):
            if ids[count] not in self._pins and ids[count] not in self._idle:
                return count
        return limit

    def unpinned_blocks(self, ids: Sequence[int], count: int) -> int:
        """Return the KV blocks that pinning the first `count` ids would take into use."""
        return sum(self._blocks_per_id for each in islice(ids, count) if each not in self._pins)

    def pin(self, ids: Sequence[int], count: int) -> int:
        """Use the first `count` ids; returns the KV blocks that were not in use before."""
        pins, taken = self._pins, 0
        for each in islice(ids, count):
            uses = pins.get(each, 0)
            if not uses:
                self._idle.pop(each, None)
                taken += self._blocks_per_id
            pins[each] = uses + 1
        return taken

    def unpin(self, ids: Sequence[int], count: int) -> int:
        """Give the first `count` ids back; returns the KV blocks that are no longer in use. The tail idles first."""
        pins, freed = self._pins, 0
        for each in reversed(ids[:count]):
            uses = pins[each] - 1
            if uses:
                pins[each] = uses
            else:
                del pins[each]
                self._idle[each] = None
                freed += self._blocks_per_id
        return freed

    def evict(self, room_blocks: int) -> None:
        """Forget the longest idle blocks until the rest fits into `room_blocks`."""
        surplus = len(self._idle) - room_blocks // self._blocks_per_id
        if surplus > 0:
            for each in list(islice(self._idle, surplus)):
                del self._idle[each]
