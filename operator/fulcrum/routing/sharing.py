"""What gateways of one cluster tell each other (`sent`), taken from the view of one and learnt by that of another."""

from __future__ import annotations

from fulcrum.routing.sent import SentBatch
from fulcrum.routing.view import ClusterView


def take_batch(view: ClusterView) -> SentBatch | None:
    """What was sent since the last time, for other gateways; None: nothing."""
    sent = view.affinity.take_sent()
    workers = {
        number: (worker.name, worker.incarnation)
        for number in {each.worker for each in sent}
        if (worker := view.workers.by_index.get(number)) is not None
    }
    return SentBatch(workers, tuple(sent)) if sent else None


def learn_batch(view: ClusterView, batch: SentBatch) -> None:
    """Another gateway sent this. Workers that are not known here, or are another process here, are left out."""
    view.affinity.learn(
        {
            number: worker.index
            for number, (name, incarnation) in batch.workers.items()
            if (worker := view.workers.by_name.get(name)) is not None and worker.incarnation == incarnation
        },
        batch.sent,
    )
