"""What gateways of one cluster tell each other: which prefixes each sent to which worker.

Workers have other numbers in each of them.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fulcrum.routing.prefixes import BYTE_ENDS

MAX_BATCH_KEYS: Final = 16_384
"""Most keys and prompts of a batch, in all. Bounds a message (150 KB) and what it takes to learn it (some 10 ms)."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """One prompt that was sent to a worker."""

    worker: Annotated[int, Meta(ge=0)]
    """Its number in the gateway that sent it."""
    new_units: Annotated[int, Meta(ge=0, le=2**40)]
    """What the worker does not have on its device, in units of the affinity memory."""
    computed_units: Annotated[int, Meta(ge=0, le=2**40)]
    """What of that it computes; the rest it loads."""
    known: bool
    """The first key was told before: it stands for itself and those of the shorter prefixes."""
    keys: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=len(BYTE_ENDS))]
    """Prefix keys of 64 bits, shortest first."""


class SentBatch(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway sent in a while."""

    workers: Annotated[
        dict[
            Annotated[int, Meta(ge=0)],
            tuple[Annotated[str, Meta(max_length=512)], Annotated[str, Meta(max_length=512)]],
        ],
        Meta(max_length=MAX_BATCH_KEYS),
    ]
    """Name (of its rank of data parallel, where it has several) and incarnation of each worker: another process holds
    nothing of what the one before held."""
    sent: Annotated[tuple[Sent, ...], Meta(max_length=MAX_BATCH_KEYS)]
