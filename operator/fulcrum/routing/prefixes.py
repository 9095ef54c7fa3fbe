"""Keys of a prompt's prefixes: by them gateways and workers know a prompt again without its text."""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from fulcrum.api.pool_types import MAX_PROMPT_TOKENS
from fulcrum.routing.tuning import TUNING


def _byte_ends() -> tuple[int, ...]:
    # A long prompt has few keys.
    count = TUNING.prefixes_per_doubling
    ends = [TUNING.first_prefix_bytes * (number + 1) for number in range(count)]
    while ends[-1] < MAX_PROMPT_TOKENS * TUNING.bytes_per_token:
        base, step = ends[-1], ends[-1] // count
        ends.extend(base + step * (number + 1) for number in range(count))
    return tuple(ends)


BYTE_ENDS: Final = _byte_ends()
"""Prefix lengths in bytes at which prompts are compared, up to the longest prompt."""


def token_ends(block_tokens: int, blocks: int) -> tuple[int, ...]:
    """Prefix lengths in tokens for keys that come with a trace: one per block of `block_tokens`."""
    return tuple(block_tokens * (number + 1) for number in range(blocks))


def prefix_keys(prompt: bytes, seed: int, before: bytes = b"") -> tuple[int, ...]:
    """Keys of `prompt`'s prefixes at `BYTE_ENDS`, shortest first.

    Equal prefixes behind an equal `before` have equal keys under one `seed`, a secret of 64 bits. XXH3 takes a third of
    the time of Python's own hash; it is no cryptographic one, and what a collision does is a wrong guess of what a
    worker holds.
    """
    size = len(prompt)
    keys = []
    key = xxh3_64_intdigest(before, seed) if before else seed
    begin = 0
    for end in BYTE_ENDS:
        if end > size:
            break
        key = xxh3_64_intdigest(prompt[begin:end], key)
        keys.append(key)
        begin = end
    return tuple(keys)
