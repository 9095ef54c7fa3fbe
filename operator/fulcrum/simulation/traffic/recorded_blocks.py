"""Blocks of prompts, from the keys of their prefixes that a gateway recorded."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from fulcrum.api.record import RecordedRequest
from fulcrum.simulation.traffic.mooncake import PREFIX_BLOCK_TOKENS


def prefix_blocks(
    requests: Sequence[RecordedRequest], key_ends: Sequence[int], *, most_blocks: int
) -> list[tuple[int, ...]]:
    """Return for each request (by arrival) the ids of its prompt's blocks of 512 tokens, the last one filled in part.

    Two prompts share a block if they share the next known prefix behind its end. How many tokens a prefix has is not
    recorded: of all prompts that begin with it, the one with the fewest tokens per unit settles it. That is too many
    only where all of those prompts are denser behind the prefix.

    `key_ends`: lengths of the prefixes whose keys requests have, in units of their prompts. `most_blocks`: of all
    requests together; from the newest on, a request with more blocks than are left gets none.
    """
    blocks = _Blocks(key_ends)
    found: list[tuple[int, ...]] = [()] * len(requests)
    # A prompt that is said to have no tokens tells nothing of its prefixes, and comes last.
    densities = [_tokens_per_unit(request) or inf for request in requests]
    for place in sorted(_fitting(requests, most_blocks), key=densities.__getitem__):
        found[place] = blocks.of(requests[place])
    return found


def _fitting(requests: Sequence[RecordedRequest], most_blocks: int) -> list[int]:
    """Places of the requests that get blocks."""
    left, places = most_blocks, []
    for place in range(len(requests) - 1, -1, -1):
        count = _count(requests[place])
        if count <= left:
            left -= count
            places.append(place)
    places.reverse()
    return places


def _count(request: RecordedRequest) -> int:
    return max(-(-request.prompt_tokens // PREFIX_BLOCK_TOKENS), 1)


def _tokens_per_unit(request: RecordedRequest) -> float:
    return request.prompt_tokens / max(request.units, 1)


class _Blocks:
    """Numbers the blocks of prompts. The first prompt with a prefix settles how many tokens that has."""

    def __init__(self, key_ends: Sequence[int]) -> None:
        self._key_ends = key_ends
        self._known: dict[int, tuple[int, range]] = {}
        """By prefix key: blocks that end within the prefix, and the ids of those that the shorter ones lack."""
        self._next = 0

    def of(self, request: RecordedRequest) -> tuple[int, ...]:
        """Return the ids of all blocks of a prompt."""
        count, tokens_per_unit = _count(request), _tokens_per_unit(request)
        ids: list[int] = []
        whole = 0
        for key, end in zip(request.keys, self._key_ends, strict=False):
            known = self._known.get(key)
            if known is None:
                tokens = min(int(end * tokens_per_unit), request.prompt_tokens)
                blocks = max(tokens // PREFIX_BLOCK_TOKENS, whole)
                known = self._known[key] = (blocks, self._new(blocks - whole))
            whole = known[0]
            ids += known[1]
        del ids[count:]
        ids += self._new(count - len(ids))
        return tuple(ids)

    def _new(self, count: int) -> range:
        begin, self._next = self._next, self._next + count
        return range(begin, self._next)
