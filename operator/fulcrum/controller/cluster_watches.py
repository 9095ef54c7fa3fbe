"""What is known about the load of every cluster: kept up in the background, handed out at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from fulcrum.api.worker import LoadReport
from fulcrum.controller.cluster_watch import ClusterWatch
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.sources import ReadSecret, Sources
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide.measurements import Measurements
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry import Agents
from fulcrum.telemetry.source import ClusterRef

ClusterKey = tuple[str, str]
"""Namespace and name."""
_CLOSE_SECONDS: Final = 2.0


class ClusterWatches:
    """Follows every cluster that it was shown until told to forget it. Use as an async context manager.

    `wake` asks for a tick of a cluster whose status should say something else, `looked` for that after a look at a calm
    one (None: as `wake`).
    """

    def __init__(
        self,
        agents: Agents,
        metrics: Metrics,
        read_secret: ReadSecret,
        *,
        wake: Callable[[ClusterKey], None],
        looked: Callable[[ClusterKey], None] | None = None,
    ) -> None:
        self._agents = agents
        self._metrics = metrics
        self._wake = wake
        self._looked = looked or wake
        self._sources = Sources(read_secret)
        self._watches: dict[ClusterKey, tuple[ClusterWatch, asyncio.Task[None]]] = {}
        self._stopped: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._sources.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._sources.__aexit__(kind, error, trace)

    def measurements_of(self, cluster: WatchedCluster) -> tuple[Measurements, dict[str, LoadReport], bool]:
        """Return what is known now, the loads by worker, and whether unknown traffic is more than not yet known."""
        key = cluster.ref.key
        if key not in self._watches:
            watch = ClusterWatch(
                cluster,
                self._sources,
                self._agents,
                self._metrics,
                wake=lambda: self._wake(key),
                looked=lambda: self._looked(key),
            )
            self._watches[key] = (watch, asyncio.create_task(watch.run(), name=f"watch-{key[0]}-{key[1]}"))
        watch, _ = self._watches[key]
        watch.update(cluster)
        return watch.measurements(), watch.loads(), watch.settled

    def look_every(self, key: ClusterKey, every_seconds: float, *, loads_every_seconds: float | None = None) -> None:
        """Change how often a cluster is looked at, and its workers' load reports are read."""
        found = self._watches.get(key)
        if found is not None:
            found[0].look_every(every_seconds, loads_every_seconds=loads_every_seconds)

    def shown(self, key: ClusterKey) -> tuple[Traffic | None, dict[str, LoadReport]]:
        """Return what is known of a cluster's traffic and of its workers' loads, for people."""
        found = self._watches.get(key)
        return (None, {}) if found is None else found[0].shown()

    def forget(self, key: ClusterKey) -> None:
        """Stop following a cluster that is gone."""
        found = self._watches.pop(key, None)
        if found is None:
            return
        found[1].cancel()
        self._stopped.add(found[1])
        found[1].add_done_callback(self._stopped.discard)
        self._sources.scrape.forget(ClusterRef(namespace=key[0], name=key[1]))
        self._metrics.forget(*key)

    async def stop(self) -> None:
        """Stop following anything."""
        for key in list(self._watches):
            self.forget(key)
        if self._stopped:
            await asyncio.wait(set(self._stopped), timeout=_CLOSE_SECONDS)
