"""Gateways of one cluster tell each other what they sent where. Workers have other numbers in each of them."""

from __future__ import annotations

from typing import Final

from fulcrum.routing.sent import Sent, SentBatch
from fulcrum.routing.view import ClusterView

SHARE_SECONDS: Final = 0.25
"""How long a gateway gathers before it tells the others: each message costs some 0.1 ms of CPU."""


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
