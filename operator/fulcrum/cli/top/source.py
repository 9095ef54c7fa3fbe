"""Where `fulcrum top` reads: the Kubernetes API, agents for loads, gateways for what arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fulcrum.api.names import (
    API_VERSION,
    COMPONENT_GATEWAY,
    COMPONENT_WORKER,
    KIND,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_ROLE,
    PLURAL,
    PORT_GATEWAY_INSIDE,
)
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.ports import agent_of
from fulcrum.api.worker import LoadReport, WorkCounters
from fulcrum.cli.top.view import Arrivals, EventLine, View, WorkerLine
from fulcrum.kube import Api, ApiError
from fulcrum.kube.readiness import is_true, labels, trouble
from fulcrum.telemetry import Agents

Json = dict[str, Any]

GATEWAY_SECONDS: Final = 0.5
"""A gateway that cannot be reached must not hold up the frame."""
EVENTS: Final = 32
_ARRIVALS: Final = "fulcrum_gateway_arrivals_total"
_ANSWERED: Final = "fulcrum_gateway_requests_total"


class NoClusterError(Exception):
    """There is no such cluster, or it is not clear which one is meant; the message says what to do."""


async def find_cluster(api: Api, namespace: str | None, name: str | None) -> tuple[str, str]:
    """Return namespace and name of the one cluster that is meant. Errors: NoClusterError, ApiError, Unreachable."""
    place = f"namespaces/{namespace}/" if namespace else ""
    try:
        items = (await api.get(f"/apis/{API_VERSION}/{place}{PLURAL}")).get("items") or []
    except ApiError as error:
        if error.code != 404:
            raise
        raise NoClusterError("this Kubernetes does not know InferenceClusters; install the operator first") from error
    found = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items]
    meant = [key for key in found if name in (None, key[1])]
    if len(meant) == 1:
        return meant[0]
    where = f" in namespace {namespace}" if namespace else ""
    if not meant:
        raise NoClusterError(f"there is no InferenceCluster{f' {name}' if name else ''}{where}")
    known = ", ".join(f"{cluster} -n {space}" for space, cluster in meant)
    raise NoClusterError(f"there are several InferenceClusters{where}; say which one: {known}")


class Source:
    """Reads one cluster again and again, and remembers counters for rates. Open with `Source.open`."""

    def __init__(
        self,
        api: Api,
        agents: Agents,
        http: aiohttp.ClientSession,
        key: tuple[str, str],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._agents = agents
        self._http = http
        self._namespace, self._name = key
        self._clock = clock
        self._work: dict[str, tuple[float, WorkCounters]] = {}
        self._counts: dict[str, tuple[float, Mapping[str, float]]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, api: Api, agents: Agents, key: tuple[str, str]) -> AsyncIterator[Source]:
        """Return a source of the cluster `key` (namespace, name)."""
        timeout = aiohttp.ClientTimeout(total=GATEWAY_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            yield cls(api, agents, http, key, clock=time.monotonic)

    async def read(self) -> View:
        """Take one look. Errors: ApiError, Unreachable, ValueError (a spec that cannot be read)."""
        space = f"namespaces/{self._namespace}"
        about = f"involvedObject.kind={KIND},involvedObject.name={self._name}"
        cluster, pods, events = await asyncio.gather(
            self._api.get(f"/apis/{API_VERSION}/{space}/{PLURAL}/{self._name}"),
            self._api.get(f"/api/v1/{space}/pods", {"labelSelector": f"{LABEL_CLUSTER}={self._name}"}),
            self._api.get(f"/api/v1/{space}/events", {"fieldSelector": about}),
        )
        components: dict[str, list[Json]] = {COMPONENT_WORKER: [], COMPONENT_GATEWAY: []}
        for pod in pods.get("items") or []:
            components.get(labels(pod).get(LABEL_COMPONENT, ""), []).append(pod)
        workers, gateways = components[COMPONENT_WORKER], components[COMPONENT_GATEWAY]
        loads, counts = await asyncio.gather(
            self._agents.loads(
                {pod["metadata"]["name"]: agent for pod in workers if _address(pod) and (agent := agent_of(pod))}
            ),
            self._gateway_counts(gateways),
        )
        now, at = datetime.now(UTC), self._clock()
        lines = tuple(self._worker(pod, loads.get(pod["metadata"]["name"]), now=now, at=at) for pod in workers)
        uid = cluster["metadata"]["uid"]
        return View(
            now=now,
            cluster=load_inference_cluster(cluster),
            workers=tuple(sorted(lines, key=_order)),
            gateways=len(counts),
            gateways_answered=sum(found is not None for found in counts.values()),
            arrivals=self._arrivals(counts, at),
            events=_events(events.get("items") or [], uid),
        )

    def _worker(self, pod: Json, load: LoadReport | None, *, now: datetime, at: float) -> WorkerLine:
        metadata = pod["metadata"]
        rates = self._token_rates(metadata["uid"], load.work if load is not None else None, at)
        ready = is_true(pod, "Ready")
        phase = (
            "Terminating" if metadata.get("deletionTimestamp") else (pod.get("status") or {}).get("phase", "Pending")
        )
        return WorkerLine(
            name=metadata["name"],
            role=labels(pod).get(LABEL_ROLE, ""),
            ready=ready,
            state=trouble(pod) or ("ready" if ready and phase == "Running" else phase),
            age_seconds=(now - _moment(metadata["creationTimestamp"])).total_seconds(),
            running=load.running if load is not None else None,
            waiting=load.waiting if load is not None else None,
            kv_usage=load.kv_usage if load is not None else None,
            prompt_tokens_per_second=rates[0],
            output_tokens_per_second=rates[1],
            answered=load is not None,
        )

    def _token_rates(self, uid: str, work: WorkCounters | None, at: float) -> tuple[float | None, float | None]:
        """Tokens per second that went in and came out since the last look."""
        if work is None:
            self._work.pop(uid, None)
            return None, None
        before = self._work.get(uid)
        self._work[uid] = (at, work)
        if before is None or work.prompt_tokens < before[1].prompt_tokens or at <= before[0]:
            return None, None  # the first look, or the engine is another one
        seconds = at - before[0]
        decoded = work.decode_tokens - before[1].decode_tokens
        # The first token of each request is the prefill's.
        return (
            (work.prompt_tokens - before[1].prompt_tokens) / seconds,
            (decoded + work.prompts - before[1].prompts) / seconds,
        )

    async def _gateway_counts(self, pods: list[Json]) -> dict[str, Mapping[str, float] | None]:
        """What each running gateway has counted, by uid; None where it did not answer."""
        running = {pod["metadata"]["uid"]: ip for pod in pods if (ip := _address(pod))}
        found = await asyncio.gather(*(self._counts_of(ip) for ip in running.values()))
        return dict(zip(running, found, strict=True))

    async def _counts_of(self, ip: str) -> Mapping[str, float] | None:
        host = f"[{ip}]" if ":" in ip else ip
        try:
            async with self._http.get(f"http://{host}:{PORT_GATEWAY_INSIDE}/metrics") as response:
                return _count(await response.text()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    def _arrivals(self, counts: dict[str, Mapping[str, float] | None], at: float) -> Arrivals | None:
        rates: dict[str, float] = {}
        whole = bool(counts)
        for uid, now in counts.items():
            before = self._counts.pop(uid, None)
            if now is not None:
                self._counts[uid] = (at, now)
            if now is None or before is None or at <= before[0] or now.get("", 0.0) < before[1].get("", 0.0):
                whole = False  # a part of what arrives is not what arrives
                continue
            for key, count in now.items():
                rates[key] = rates.get(key, 0.0) + (count - before[1].get(key, 0.0)) / (at - before[0])
        if not whole:
            return None
        total = rates.pop("", 0.0)
        return Arrivals(rate=total, failed={reason: rate for reason, rate in sorted(rates.items()) if rate > 0})


def _count(page: str) -> dict[str, float]:
    """Arrivals (under the empty name) and unserved requests by reason."""
    counts = {"": 0.0}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == _ARRIVALS:
                counts[""] += sample.value
            elif sample.name == _ANSWERED and sample.labels.get("reason"):
                reason = sample.labels["reason"]
                counts[reason] = counts.get(reason, 0.0) + sample.value
    return counts


def _address(pod: Json) -> str | None:
    status = pod.get("status") or {}
    return status.get("podIP") if status.get("phase") == "Running" else None


def _order(worker: WorkerLine) -> tuple[str, int]:
    stem, _, ordinal = worker.name.rpartition("-")
    return stem, int(ordinal) if ordinal.isdecimal() else 0


def _events(items: list[Json], uid: str) -> tuple[EventLine, ...]:
    lines = [
        EventLine(
            time=_moment(stamp),
            reason=item.get("reason") or "",
            message=item.get("message") or "",
            warning=item.get("type") == "Warning",
        )
        for item in items
        if item["involvedObject"].get("uid") == uid and (stamp := item.get("lastTimestamp") or item.get("eventTime"))
    ]
    return tuple(sorted(lines, key=lambda line: line.time, reverse=True)[:EVENTS])


def _moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
