"""What one gateway tells the others: which prefixes it has sent to which worker. Values only."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fulcrum.api.base import MAX_WORKERS

MAX_BATCH_KEYS: Final = 16_384
"""Most keys and prompts of a batch, in all. Bounds a message (150 KB) and what it takes to learn it (some 10 ms)."""
_MAX_NAME: Final = 512
"""A Pod's name has at most 253 characters, and its address comes with it."""
_MAX_PROMPT_KEYS: Final = 128
"""`affinity.BYTE_ENDS` has fewer ends."""
_Key = Annotated[int, Meta(ge=0)]  # msgpack carries no more than 64 bits
_Name = Annotated[str, Meta(max_length=_MAX_NAME)]


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """One prompt that was sent to a worker."""

    worker: Annotated[int, Meta(ge=0)]
    """Its number: in an affinity memory, or in `SentBatch.workers`."""
    new_units: Annotated[int, Meta(ge=0, le=2**40)]
    """What the worker does not have on its device, in units of the affinity memory."""
    computed_units: Annotated[int, Meta(ge=0, le=2**40)]
    """What of that it computes; the rest it loads."""
    keys: Annotated[tuple[_Key, ...], Meta(max_length=_MAX_PROMPT_KEYS)]
    """Prefix keys that the worker did not hold, shortest first."""


class SentBatch(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway sent in a while."""

    workers: Annotated[tuple[tuple[_Name, _Name], ...], Meta(max_length=MAX_WORKERS)]
    """Name and incarnation of each worker: another process holds nothing of what the one before held."""
    sent: Annotated[tuple[Sent, ...], Meta(max_length=MAX_BATCH_KEYS)]
