"""Asks clusters with requests under way whether they are there, so that a silent one keeps no client waiting."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fulcrum.gateway.front.clusters import Cluster, Clusters
from fulcrum.gateway.http.upstream_answer import UpstreamError

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 10.0
"""A cluster that answers nothing for so long, not even the heartbeat, is silent: its requests go elsewhere.

Several heartbeats; a gateway whose loop is busy answers within a second or two."""
_EVERY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
"""Longest wait for an answer to a heartbeat."""
_PATH: Final = "/health"


class Heartbeat:
    """One question per second to each cluster that has requests under way, or is silent."""

    def __init__(self, clusters: Clusters, loop: asyncio.AbstractEventLoop) -> None:
        self._clusters = clusters
        self._loop = loop
        self._asked: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Returns only when cancelled."""
        try:
            while True:
                for cluster in self._clusters:
                    if cluster.known.name not in self._asked and (cluster.in_flight or cluster.silent):
                        self._ask(cluster)
                await asyncio.sleep(_EVERY_SECONDS)
        finally:
            for task in self._asked.values():
                task.cancel()

    def _ask(self, cluster: Cluster) -> None:
        name = cluster.known.name
        task = self._loop.create_task(self._question(cluster))
        self._asked[name] = task
        task.add_done_callback(lambda _: self._asked.pop(name))

    async def _question(self, cluster: Cluster) -> None:
        deadline = self._loop.time() + _ANSWER_SECONDS
        try:
            await cluster.pool.exchange(cluster.pool.question(_PATH), sink=None, deadline=deadline)
        except UpstreamError:
            return
        cluster.heard_at = self._loop.time()
        if cluster.silent:
            cluster.silent = False
            logger.info("cluster_answers_again cluster=%s", cluster.known.name)
