"""Where `fulcrum dashboard` reads: watches of the Kubernetes API, agents for loads, gateways for what arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fulcrum.api.names import COMPONENT_GATEWAY, COMPONENT_WORKER, LABEL_CLUSTER, LABEL_COMPONENT
from fulcrum.api.ports import AgentAddress, agent_of
from fulcrum.api.worker import LoadReport
from fulcrum.controller.dashboard_source import ABOUT_CLUSTERS, events_of
from fulcrum.controller.kube import EVENT, INFERENCE_CLUSTER, POD
from fulcrum.controller.seen import SeenEvent, SeenObject, SeenPod
from fulcrum.dashboard import ClusterFacts, Reading
from fulcrum.kube import Api, Json, Key, key_of
from fulcrum.kube.informer import Informer
from fulcrum.kube.readiness import is_true, labels
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry import Agents, ClusterRef, ScrapeSource

ASK_SECONDS: Final = 2.0
"""How often workers and gateways of a cluster are asked while a page shows it: as often as the operator asks."""
OVERVIEW_SECONDS: Final = 10.0
"""How often they are asked otherwise, or while none of them answers."""
WINDOW_SECONDS: Final = 20.0
"""What the rate of requests is measured over: at most two looks of OVERVIEW_SECONDS; half of it makes a rate known."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """What the workers and gateways of one cluster said last."""

    asked_at: float = float("-inf")
    loads: Mapping[str, LoadReport] = field(default_factory=dict)
    traffic: Traffic | None = None


class KubeSource:
    """Reads all clusters of a Kubernetes cluster, or of one namespace. `run` follows them."""

    def __init__(self, api: Api, agents: Agents, scrape: ScrapeSource, namespace: str | None) -> None:
        self._agents = agents
        self._scrape = scrape
        self._clusters = Informer(api, INFERENCE_CLUSTER, namespace=namespace, shape=SeenObject)
        self._pods = Informer(api, POD, namespace=namespace, labels={LABEL_CLUSTER: ""}, shape=SeenPod)
        self._events = Informer(api, EVENT, namespace=namespace, fields=ABOUT_CLUSTERS, shape=SeenEvent, optional=True)
        self._known: dict[Key, _Known] = {}
        self._watched: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Follow everything until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._clusters, self._pods, self._events):
                tasks.create_task(informer.run())
            tasks.create_task(self._ask())

    async def synced(self) -> None:
        """Wait until clusters and Pods have been read once; without the right to read Events the rest is shown."""
        await self._clusters.synced.wait()
        await self._pods.synced.wait()

    async def read(self, watched: frozenset[str]) -> Reading:
        """Return what is known now."""
        self._watched = watched
        pods, events = self._pods_of(COMPONENT_WORKER), events_of(watched, (self._events,))
        behind = [informer.behind_seconds for informer in (self._clusters, self._pods)]
        return Reading(
            clusters=[self._facts(document, pods, events) for document in self._clusters],
            behind_seconds=max((seconds for seconds in behind if seconds is not None), default=None),
        )

    def _facts(self, document: Json, pods: Mapping[Key, list[Json]], events: Mapping[Key, list[Json]]) -> ClusterFacts:
        key = key_of(document)
        known = self._known.get(key, _Known())
        return ClusterFacts(
            document=document,
            pods=pods.get(key, ()),
            loads=known.loads,
            traffic=known.traffic,
            events=events.get(key, ()),
        )

    def _pods_of(self, component: str) -> dict[Key, list[Json]]:
        found: dict[Key, list[Json]] = {}
        for pod in self._pods:
            marks = labels(pod)
            if marks.get(LABEL_COMPONENT) == component:
                found.setdefault((pod["metadata"]["namespace"], marks[LABEL_CLUSTER]), []).append(pod)
        return found

    async def _ask(self) -> None:
        """Ask workers and gateways of each cluster in the background: a page must not wait for dead ones."""
        while True:
            began, keys = time.monotonic(), {key_of(document) for document in self._clusters}
            for key in self._known.keys() - keys:
                del self._known[key]
                self._scrape.forget(ClusterRef(namespace=key[0], name=key[1]))
            workers, gateways = self._pods_of(COMPONENT_WORKER), self._pods_of(COMPONENT_GATEWAY)
            due = [key for key in keys if self._is_due(key, began)]
            await asyncio.gather(*(self._ask_one(key, workers.get(key, []), gateways.get(key, [])) for key in due))
            await asyncio.sleep(max(0.1, ASK_SECONDS - (time.monotonic() - began)))

    def _is_due(self, key: Key, now: float) -> bool:
        known = self._known.setdefault(key, _Known())
        is_shown = "/".join(key) in self._watched and (known.loads or known.traffic is not None)
        return now - known.asked_at >= (ASK_SECONDS if is_shown else OVERVIEW_SECONDS) - ASK_SECONDS / 2

    async def _ask_one(self, key: Key, workers: list[Json], gateways: list[Json]) -> None:
        known, now = self._known[key], time.time()
        known.asked_at = time.monotonic()
        addresses = _addresses(gateways)
        ref = ClusterRef(namespace=key[0], name=key[1], gateways=len(addresses))
        loads, _ = await asyncio.gather(self._agents.loads(_agents(workers)), self._scrape.scrape(ref, addresses, now))
        known.loads = {name: load for name, load in loads.items() if load is not None}
        traffic = await self._scrape.traffic(ref, window_seconds=WINDOW_SECONDS, now=now)
        known.traffic = traffic if isinstance(traffic, Traffic) else None


def _agents(pods: list[Json]) -> dict[str, AgentAddress]:
    """Return the agent of each ready worker by the name of its Pod."""
    ready = (pod for pod in pods if is_true(pod, "Ready"))
    return {pod["metadata"]["name"]: agent for pod in ready if (agent := agent_of(pod)) is not None}


def _addresses(pods: list[Json]) -> dict[str, str]:
    """Return the address of each ready Pod by its name."""
    return {
        pod["metadata"]["name"]: address
        for pod in pods
        if is_true(pod, "Ready") and (address := (pod.get("status") or {}).get("podIP"))
    }
