"""What gateways of one cluster tell each other: which prefixes each sent to which worker.

Workers have other numbers in each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from fulcrum.api.base import MAX_WORKERS

if TYPE_CHECKING:
    from fulcrum.routing.view import ClusterView

SHARE_SECONDS: Final = 0.25
"""How long a gateway gathers before it tells the others: each message costs some 0.1 ms of CPU."""
MAX_BATCH_KEYS: Final = 16_384
"""Most keys and prompts of a batch, in all. Bounds a message (150 KB) and what it takes to learn it (some 10 ms)."""
_MAX_NAME: Final = 512
"""A Pod's name has at most 253 characters, and its address comes with it."""
MAX_PROMPT_KEYS: Final = 128
"""Prefixes of one prompt that are compared, at most."""
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
    keys: Annotated[tuple[_Key, ...], Meta(max_length=MAX_PROMPT_KEYS)]
    """Prefix keys that the worker did not hold, shortest first."""


class SentBatch(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway sent in a while."""

    workers: Annotated[tuple[tuple[_Name, _Name], ...], Meta(max_length=MAX_WORKERS)]
    """Name and incarnation of each worker: another process holds nothing of what the one before held."""
    sent: Annotated[tuple[Sent, ...], Meta(max_length=MAX_BATCH_KEYS)]


def take_batch(view: ClusterView) -> SentBatch | None:
    """What was sent since the last time, for other gateways; None: nothing."""
    places: dict[int, int] = {}
    workers: list[tuple[str, str]] = []
    sent: list[Sent] = []
    for each in view.affinity.take_sent():
        place = places.get(each.worker)
        if place is None:
            worker = view.by_index.get(each.worker)
            if worker is None:
                continue
            place = places[each.worker] = len(workers)
            workers.append((worker.name, worker.incarnation))
        sent.append(Sent(place, each.new_units, each.computed_units, each.keys))
    return SentBatch(tuple(workers), tuple(sent)) if sent else None


def learn_batch(view: ClusterView, batch: SentBatch) -> None:
    """Another gateway sent this. Workers that are not known here, or are another process here, are left out."""
    numbers: dict[int, int] = {}
    for place, (name, incarnation) in enumerate(batch.workers):
        worker = view.workers.get(name)
        if worker is not None and worker.incarnation == incarnation:
            numbers[place] = worker.index
    for each in batch.sent:
        number = numbers.get(each.worker)
        if number is not None:
            view.affinity.learn(each.keys, number, each.new_units, each.computed_units)
