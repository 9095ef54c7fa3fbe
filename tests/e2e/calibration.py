"""How fast real workers are under traffic: what they report of it, taken in as the controller takes it in."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
import urllib.request
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
from local_cluster import Cluster

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.rows import rows_between
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed, pool_speed
from fulcrum.replay import Client, Record, discover, replay
from fulcrum.simulation.traffic import Request

PREFILL_ROW_SECONDS, DECODE_ROW_SECONDS = 4.0, 1.0
"""Prompts take seconds; a batch seldom stays the same for longer than the shorter one."""
_POLL_SECONDS = 0.5


class Reports:
    """Load reports of a cluster's workers from `__enter__` to `__exit__`."""

    def __init__(self, cluster: Cluster) -> None:
        self._addresses = {worker.name: worker.ip for worker in cluster.workers()}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.reports: dict[str, list[tuple[float, LoadReport]]] = {name: [] for name in self._addresses}
        """By worker: when, on a monotonic clock, and what."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for name, ip in self._addresses.items():
                try:
                    self.reports[name].append((time.monotonic(), load(ip)))
                except OSError:
                    continue  # a busy agent; the next report says the same and more


def load(worker_ip: str) -> LoadReport:
    """`GET /load`."""
    with urllib.request.urlopen(f"http://{worker_ip}:8001/load", timeout=5) as response:
        return msgspec.json.decode(response.read(), type=LoadReport)


def speed_at_start(cluster: Cluster) -> WorkerSpeed:
    """What the workers measured before they became ready, put together as the gateway does it."""
    speeds = [measured_speed(load(worker.ip)) for worker in cluster.workers()]
    speed = pool_speed([each for each in speeds if each is not None])
    assert speed is not None
    return speed


def speed_under_traffic(start: WorkerSpeed, reports: Reports, *, isl_cv2: float) -> WorkerSpeed:
    """`start`, corrected by what the workers did meanwhile."""
    online = OnlineSpeed.start(start.coefficients, trust=TRUST[start.source])
    for each in reports.reports.values():
        online = _learnt(online, each, isl_cv2)
    return dataclasses.replace(start, coefficients=online.coefficients)


def leg_seconds(records: Sequence[Record], ttft_without: Sequence[float]) -> float:
    """What each leg takes outside of the engines: half of what the first tokens took longer than without it."""
    real = [record.ttft_seconds or 0.0 for record in records]
    return max(0.0, sum(real) / len(real) - sum(ttft_without) / len(ttft_without)) / 2


def run(cluster: Cluster, requests: Sequence[Request], *, seed: int) -> list[Record]:
    """Replay through the cluster's gateway."""

    async def go() -> list[Record]:
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            return await replay(client, await discover(client), requests, seed=seed)

    return asyncio.run(go())


def _learnt(online: OnlineSpeed, reports: Sequence[tuple[float, LoadReport]], isl_cv2: float) -> OnlineSpeed:
    begin_at, begin = reports[0]
    for at, report in reports[1:]:
        decodes = report.role is Role.DECODE
        if decodes and report.running != begin.running:
            begin_at, begin = at, report  # steps of one batch size only say how long each takes
        elif at - begin_at >= (DECODE_ROW_SECONDS if decodes else PREFILL_ROW_SECONDS):
            rows = rows_between(begin, report, seconds=at - begin_at, isl_cv2=isl_cv2)
            online = online.updated(row for row in rows if row is not None)
            begin_at, begin = at, report
    return online
