"""Sends the demo's traffic, and says what came of it: ratios over time, and shares inside the SLO."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from demo_load import SEED, Load
from local_cluster import Cluster

from fulcrum.api.names import PORT_AGENT, Role
from fulcrum.api.worker import LoadReport
from fulcrum.replay import Client, LatencyLimits, Progress, Record, discover, replay
from fulcrum.simulation.traffic import Request

LOST_SECONDS: Final = 600.0
"""A request without an end by then counts as lost. Far above any promise: a slow answer is late, and not lost."""
_POLL_SECONDS: Final = 0.5
_decoder: Final = msgspec.json.Decoder(LoadReport)

Tell = Callable[[float, Progress, str], None]
"""Hears (seconds, progress, ratio) while requests are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replay as its clients saw it, with seconds since its start."""

    records: tuple[Record, ...]
    """In the order in which they were due."""
    start_seconds: float
    ratios: tuple[tuple[float, str], ...]
    """Every ratio that the workers had, and since when."""

    def due(self, record: Record) -> float:
        return record.due_seconds - self.start_seconds

    def between(self, first: float, last: float) -> list[Record]:
        return [record for record in self.records if first <= self.due(record) < last]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of requests inside the SLO, 0 to 1; None where there was no request or no flip."""

    judged: float | None
    """Of all but those that came while the operator could only watch."""
    all: float | None
    before: float | None
    """Of the second phase until its first flip."""
    after: float | None
    """The same from then on."""


def shares(seen: Seen, load: Load) -> Shares:
    slo, begin, end = load.slo, load.prompts.seconds, load.seconds
    flip = next((at for at, _ in seen.ratios if at >= begin), None)
    return Shares(
        judged=attainment([*seen.between(0.0, begin), *seen.between(load.act_seconds, end)], slo),
        all=attainment(seen.records, slo),
        before=None if flip is None else attainment(seen.between(begin, flip), slo),
        after=None if flip is None else attainment(seen.between(flip, end), slo),
    )


def attainment(records: Sequence[Record], slo: LatencyLimits) -> float | None:
    """Share of the records inside the SLO; None without any."""
    return sum(slo.met_by(record) for record in records) / len(records) if records else None


def warm_up(cluster: Cluster, load: Load) -> list[Record]:
    """Let the gateway learn how fast the engines are under load."""
    return asyncio.run(_replayed(cluster, load.warm_up, SEED + 1))


def send(cluster: Cluster, requests: Sequence[Request], tell: Tell, *at: tuple[float, Callable[[], None]]) -> Seen:
    """Replay `requests`; each of `at` is called once, so many seconds from the start."""
    return asyncio.run(_send(cluster, requests, tell, at))


async def _replayed(cluster: Cluster, requests: Sequence[Request], seed: int) -> list[Record]:
    async with Client(cluster.endpoint(), timeout_seconds=LOST_SECONDS) as client:
        return await replay(client, await discover(client), requests, seed=seed)


async def _send(
    cluster: Cluster, requests: Sequence[Request], tell: Tell, calls: Sequence[tuple[float, Callable[[], None]]]
) -> Seen:
    addresses = [worker.ip for worker in cluster.workers()]
    ratios: list[tuple[float, str]] = []
    now = Progress(sent=0, ended=0, lost=0, of=len(requests))

    def noted(progress: Progress) -> None:
        nonlocal now
        now = progress

    async with Client(cluster.endpoint(), timeout_seconds=LOST_SECONDS) as client:
        endpoint = await discover(client)
        start_seconds = time.perf_counter()

        async def watch() -> None:
            while True:
                ratio = await asyncio.to_thread(_ratio, addresses)
                seconds = time.perf_counter() - start_seconds
                if ratio is not None and (not ratios or ratios[-1][1] != ratio):
                    ratios.append((seconds if ratios else 0.0, ratio))
                if ratios:
                    tell(seconds, now, ratios[-1][1])
                await asyncio.sleep(_POLL_SECONDS)

        async def act(after_seconds: float, call: Callable[[], None]) -> None:
            await asyncio.sleep(start_seconds + after_seconds - time.perf_counter())
            await asyncio.to_thread(call)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            acting = [group.create_task(act(*call)) for call in calls]
            records = await replay(client, endpoint, requests, seed=SEED, on_progress=noted)
            await asyncio.gather(*acting)
            watching.cancel()
    in_order = tuple(sorted(records, key=lambda record: record.due_seconds))
    return Seen(records=in_order, start_seconds=start_seconds, ratios=tuple(ratios))


def _ratio(addresses: Sequence[str]) -> str | None:
    """The ratio by what the agents say; None when one of them does not answer."""
    roles = []
    for address in addresses:
        try:
            with urllib.request.urlopen(f"http://{address}:{PORT_AGENT}/load", timeout=2) as response:
                roles.append(_decoder.decode(response.read()).role)
        except OSError:
            return None
    return f"{roles.count(Role.PREFILL)}P:{roles.count(Role.DECODE)}D"
