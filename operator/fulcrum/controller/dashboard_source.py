"""What the operator's dashboard shows: what its caches hold already, and the Events about its clusters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from fulcrum.api.names import COMPONENT_WORKER, KIND, LABEL_COMPONENT
from fulcrum.controller.caches import Caches
from fulcrum.controller.cluster_watches import ClusterWatches
from fulcrum.controller.kube import EVENT
from fulcrum.controller.seen import SeenEvent
from fulcrum.dashboard import Board, ClusterFacts, Reading
from fulcrum.kube import Api, Json, Key
from fulcrum.kube.informer import Informer

logger = logging.getLogger(__name__)

WAITING: Final = "This operator starts, or waits for its Lease: another one may have the figures."
"""What a page is told while this process does not act."""
ABOUT_CLUSTERS: Final = {"involvedObject.kind": KIND}
"""Field selector of the Events that are read."""


class OperatorSource:
    """Reads nothing from the API server but Events: all else is in memory."""

    def __init__(self, api: Api, caches: Caches, watches: ClusterWatches, namespaces: list[str]) -> None:
        self._caches = caches
        self._watches = watches
        self._events = tuple(
            Informer(api, EVENT, namespace=namespace, fields=ABOUT_CLUSTERS, shape=SeenEvent, optional=True)
            for namespace in namespaces or (None,)
        )

    async def show(self, board: Board) -> None:
        """Keep the board up until cancelled; before the first lists are in there is nothing to show."""
        await self._caches.any_synced()
        board.source = self
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(board.run())
                for informer in self._events:
                    tasks.create_task(informer.run())
        except* Exception:
            # A page that cannot be shown must not stop the operator.
            logger.exception("dashboard_failed")
            board.source = None

    async def read(self, watched: frozenset[str]) -> Reading:
        """Return what is known now."""
        events = events_of(watched, self._events)
        return Reading(
            clusters=[self._facts(document, events) for document in self._caches.clusters()],
            behind_seconds=self._caches.behind_seconds,
        )

    def _facts(self, document: Json, events: Mapping[Key, list[Json]]) -> ClusterFacts:
        key = (document["metadata"]["namespace"], document["metadata"]["name"])
        traffic, loads = self._watches.shown(key)
        pods = [
            pod
            for pod in self._caches.pods(key)
            if (pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == COMPONENT_WORKER
        ]
        return ClusterFacts(document=document, pods=pods, loads=loads, traffic=traffic, events=events.get(key, ()))


def events_of(watched: frozenset[str], informers: tuple[Informer, ...]) -> dict[Key, list[Json]]:
    """Return the Events about the clusters with the keys `watched`, by namespace and name."""
    found: dict[Key, list[Json]] = {}
    if watched:
        for informer in informers:
            for event in informer:
                about = event["involvedObject"]
                key = (event["metadata"]["namespace"], about.get("name") or "")
                if "/".join(key) in watched:
                    found.setdefault(key, []).append(event)
    return found
