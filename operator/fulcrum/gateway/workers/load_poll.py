"""Asks the workers' agents for their load and speed, in the background; what they do not say stays unknown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import msgspec

from fulcrum.api.gateway import LoadsReport
from fulcrum.api.worker import TransferCounters
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed, pool_speed
from fulcrum.gateway.http.upstream_answer import UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.adapters import Adapters
from fulcrum.gateway.workers.learned_speeds import LearnedSpeeds
from fulcrum.gateway.workers.progress import ask_load
from fulcrum.gateway.workers.registry import KnownRank, KnownWorker, WorkerRegistry
from fulcrum.gateway.workers.reported_transfers import ReportedTransfers
from fulcrum.kv import tiers_of

logger = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 1.0
"""Between two polls where no other gateway sends requests, so that reports only tell speeds and tiers."""
_SHARED_PERIOD_SECONDS: Final = 0.25
"""Between two polls where others do. Agents ask their engines no more often, so a shorter time would tell nothing new.
`benchmarks/kv_tiers.py` shows what it is worth."""
_ASKS_PER_SECOND: Final = 200
"""Most questions a second that a shorter period may lead to; they take 0.6 % of a core."""
TOLD_SECONDS: Final = 4.0
"""Longest since the last poll that what agents said is told to others: a period, and the longest wait for an answer,
twice."""


def period_seconds(workers: int, *, alone: bool) -> float:
    """Return the seconds from one poll of so many workers to the next."""
    if alone:
        return _PERIOD_SECONDS
    return min(max(_SHARED_PERIOD_SECONDS, workers / _ASKS_PER_SECOND), _PERIOD_SECONDS)


class LoadPoller:
    """Keeps speeds, and the work that other gateways have started, up to date in `registry`."""

    def __init__(
        self,
        registry: WorkerRegistry,
        metrics: Metrics,
        unpriced_pools: Iterable[str] = (),
        *,
        adapters: Adapters | None = None,
    ) -> None:
        """`unpriced_pools`: what moving their KV costs only reports can say. `adapters` learn which worker has them."""
        self._adapters = adapters
        self._joined = asyncio.Event()
        self._registry = registry
        self._metrics = metrics
        self.alone = True
        """No other gateway sends requests to these workers."""
        self._speeds = LearnedSpeeds()
        self._reported_transfers = ReportedTransfers(unpriced_pools)
        self._transfers: dict[KnownRank, TransferCounters] = {}
        self.polled_at = -inf
        """Loop time at which the last poll began that has ended."""
        self.suspected: Callable[[KnownRank], None] = lambda _rank: None
        """Called for each rank whose KV transfers failed since it was asked last."""

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                await self.poll()
            except Exception:  # the edge: whatever an agent says, the others are asked on
                logger.exception("poll_failed")
            with contextlib.suppress(TimeoutError):
                period = period_seconds(len(self._registry.workers), alone=self.alone)
                await asyncio.wait_for(self._joined.wait(), period)
                self._joined.clear()

    def joined(self, _worker: KnownWorker) -> None:
        """A new worker: ask soon which adapters it has, before the one that it replaces leaves."""
        if self._adapters is not None and self._adapters.enabled:
            self._joined.set()

    async def poll(self) -> None:
        """Ask every worker once, all at the same time."""
        asked = [worker for worker in self._registry.workers if worker.agent is not None]
        if not asked:
            return
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._ask(worker) for worker in asked))
        self.polled_at = began
        self._compare_transfers()
        by_pool: dict[str, list[WorkerSpeed]] = {}
        for worker in self._registry.workers:
            report = worker.ranks[0].report  # ranks are alike, and a speed is that of one
            speed = measured_speed(report) if report is not None else None
            if speed is not None:
                by_pool.setdefault(worker.record.pool, []).append(speed)
        now = asyncio.get_running_loop().time()
        self._speeds.learn(self._registry.ranks, self._registry.cluster.steps.take(), now)
        self._reported_transfers.expect(self._registry.workers, self._registry.cluster)
        for pool, measured in by_pool.items():
            speed = self._speeds.speed(pool, pool_speed(measured))
            if speed is not None:
                self._registry.cluster.workers.set_speed(pool, speed)
        for worker in self._registry.workers:
            if worker.report is not None:
                self._registry.took_kv_dtype(worker, worker.report.kv_cache_dtype)
            if worker.report is not None and worker.report.offload is not None:
                self._registry.cluster.workers.set_tiers(worker.name, tiers_of(worker.report.offload))
        if self.alone:
            return
        for worker in self._registry.workers:
            if worker.report is not None:
                self._registry.cluster.report(worker.name, worker.report, now)

    def report(self) -> LoadsReport:
        """What agents said in the last poll, as long as another one would have been due twice; then nothing."""
        age_seconds = asyncio.get_running_loop().time() - self.polled_at
        loads = {}
        if age_seconds <= TOLD_SECONDS:
            loads = {worker.name: worker.report for worker in self._registry.workers if worker.report is not None}
        return LoadsReport(age_seconds=min(age_seconds, TOLD_SECONDS), loads=loads)

    def _compare_transfers(self) -> None:
        before, self._transfers = self._transfers, {}
        for rank in self._registry.ranks:
            now = rank.report.transfers if rank.report is not None else before.get(rank)
            if now is None:
                continue
            self._transfers[rank] = now
            if (last := before.get(rank)) is not None and (
                now.failed_transfers > last.failed_transfers or now.expired_requests > last.expired_requests
            ):
                self.suspected(rank)

    async def _ask(self, worker: KnownWorker) -> None:
        report = None
        try:
            report = await ask_load(worker.agent)
        except (UpstreamError, TimeoutError):
            self._metrics.load_reports["unanswered"] += 1
        except msgspec.DecodeError as error:
            logger.debug("load_report_unreadable worker=%s error=%s", worker.name, error)
            self._metrics.load_reports["unreadable"] += 1
        else:
            self._metrics.load_reports["answered"] += report is not None
        worker.heard(report)
        if self._adapters is not None:
            self._adapters.heard(worker)
        worker.progress.note(report, asyncio.get_running_loop().time())
