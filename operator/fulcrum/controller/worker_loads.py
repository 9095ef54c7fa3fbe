"""The load reports of one cluster's workers: read while they are due, handed out while they are fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.sources import SHOWN_LOAD_SECONDS, TICK_SECONDS, decides
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import ObservedWorker
from fulcrum.telemetry import Agents

FRESH_SECONDS: Final = 3 * TICK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the workers that were asked said, by name."""

    loads: Mapping[str, LoadReport | None]
    made_at: Mapping[str, float]
    """When each of them was made."""


class WorkerLoads:
    """The latest report of each worker."""

    def __init__(self, agents: Agents, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._agents = agents
        self._metrics = metrics
        self._clock = clock
        self._every_seconds = TICK_SECONDS
        """Between two reports of a worker, where load is decided by."""
        self._slack_seconds = 0.0
        """By how much a report may be older than at the usual pace: the last one that was read, or the next one."""
        self._latest: dict[str, tuple[float, LoadReport]] = {}
        """By uid of the Pod."""
        self._asked_at = float("-inf")
        self._asked: frozenset[str] = frozenset()
        """Uids of the workers that were asked then."""

    def read_every(self, every_seconds: float) -> None:
        """Change the pace where load is decided by."""
        self._every_seconds = every_seconds
        self._slack_seconds = max(self._slack_seconds, every_seconds - TICK_SECONDS)

    async def read(self, cluster: WatchedCluster, *, awaited: bool) -> Reports | None:
        """Read the reports; None when none is due yet. `awaited`: they are due in each look."""
        asked = {worker.name: worker for worker in cluster.workers if worker.ready and not worker.deleting}
        asked_now = frozenset(worker.uid for worker in asked.values())
        every_seconds = self._every_seconds if decides(cluster.spec) else SHOWN_LOAD_SECONDS
        if awaited:
            every_seconds = TICK_SECONDS
        if self._clock() < self._asked_at + every_seconds - TICK_SECONDS / 2 and asked_now <= self._asked:
            return None
        self._asked_at, self._asked = self._clock(), asked_now
        agents = {name: agent for name, worker in asked.items() if (agent := worker.agent)}
        found = await self._ask(agents, cluster.gateways if every_seconds > TICK_SECONDS else {})
        uids = {worker.uid for worker in cluster.workers}
        self._latest = {uid: entry for uid, entry in self._latest.items() if uid in uids}
        for name, load in found.loads.items():
            if load is not None:
                self._latest[asked[name].uid] = (found.made_at[name], load)
        self._slack_seconds = self._every_seconds - TICK_SECONDS
        silent = sum(load is None for load in found.loads.values())
        if silent:
            self._metrics.telemetry_unknown("agent", "load", silent)
        return found

    async def _ask(self, agents: Mapping[str, AgentAddress], gateways: Mapping[str, str]) -> Reports:
        """Take what one of the gateways has heard of the workers, and ask the other workers."""
        heard = await self._agents.heard_loads(gateways) if gateways else None
        told: dict[str, LoadReport] = {}
        told_at = self._clock()
        if heard is not None:
            told = {name: heard.loads[name] for name in agents if name in heard.loads}
            told_at -= heard.age_seconds
        rest = await self._agents.loads({name: agent for name, agent in agents.items() if name not in told})
        made_at = {**dict.fromkeys(told, told_at), **dict.fromkeys(rest, self._clock())}
        return Reports(loads={**told, **rest}, made_at=made_at)

    def decided_by(self, cluster: WatchedCluster) -> dict[str, LoadReport]:
        """Return the latest load of each worker by name; not of draining ones, whose end must not rest on old news.

        In Manual, where they are read too rarely to rest anything on, there are none.
        """
        if not decides(cluster.spec):
            return {}
        return {worker.name: load for worker, load in self.shown(cluster) if worker.role is not Role.DRAINING}

    def shown(self, cluster: WatchedCluster) -> Iterator[tuple[ObservedWorker, LoadReport]]:
        """Yield the latest load of each worker, as people see it: in Manual, too, if less fresh."""
        late_seconds = 3 * self._slack_seconds if decides(cluster.spec) else SHOWN_LOAD_SECONDS
        oldest_at = self._clock() - FRESH_SECONDS - late_seconds
        for worker in cluster.workers:
            found = self._latest.get(worker.uid)
            if found is not None and found[0] >= oldest_at:
                yield worker, found[1]
