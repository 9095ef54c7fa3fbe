"""One cluster's load, followed in the background, so that no decision waits for a source of metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import re
import time
from collections.abc import Callable
from typing import Final

from fulcrum.api.gateway import PairsReport
from fulcrum.api.types import AdapterStatus, BatchesStatus, KvTierStatus
from fulcrum.api.worker import LoadReport
from fulcrum.controller.agent_adapters import adapter_statuses
from fulcrum.controller.batch_pod import batches_status
from fulcrum.controller.callers import HeardCallers
from fulcrum.controller.cluster_forecast import ClusterForecast
from fulcrum.controller.drift import PlacementDrift, PlacementQuestion, compare_in_background
from fulcrum.controller.kv_figures import kv_tiers
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.published import PUBLISH_SECONDS, with_measurements
from fulcrum.controller.reported_model import ReportedModel
from fulcrum.controller.sources import TICK_SECONDS, Sources, decides, name_of, pace_of
from fulcrum.controller.speeds import PoolSpeeds
from fulcrum.controller.start_times import StartTimes
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.controller.worker_loads import WorkerLoads
from fulcrum.decide.measurements import Measurements
from fulcrum.load.traffic import Traffic, without_nonsense
from fulcrum.rollout import adapter_sources
from fulcrum.telemetry import Agents
from fulcrum.telemetry.source import TelemetrySource, Unknown

logger = logging.getLogger(__name__)

SOURCE_SECONDS: Final = 8.0
"""Deadline of a source of metrics that has none of its own."""
FRESH_SECONDS: Final = 15.0
"""Older answers are unknown: one lost answer is bridged, an outage is not."""
BATCHES_SECONDS: Final = 30.0
"""How often the batch Pod is asked: each change is a write of the status."""
DEFAULT_START_SECONDS: Final = 600.0
"""Start time of a Pod while none was measured; the forecast looks as far ahead."""

_FIGURES: Final = re.compile(r"[0-9.]+")


def _plain(reason: str) -> str:
    """A reason without its figures: they change from one look to the next, and each change would be a write."""
    return _FIGURES.sub("#", reason)


def _failing(reports: tuple[PairsReport, ...]) -> set[tuple[str, str]]:
    return {(pair.prefill, pair.decode) for report in reports for pair in report.failing}


class ClusterWatch:
    """Follows one cluster. What it remembers may be lost at any time."""

    def __init__(
        self,
        cluster: WatchedCluster,
        sources: Sources,
        agents: Agents,
        metrics: Metrics,
        *,
        wake: Callable[[], None],
        looked: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._sources = sources
        self._agents = agents
        self._metrics = metrics
        self._wake = wake
        self._looked = looked or wake
        self._clock = clock
        self._unix_time = unix_time
        self._started_at = self._woke_at = clock()
        self._every_seconds = TICK_SECONDS
        """Between two looks, where load is decided by."""
        self._slack_seconds = 0.0
        """By how much what is known may be older than at the usual pace: that since traffic was read, or of the next
        look."""
        self._hurry = asyncio.Event()
        self._traffic: tuple[float, Traffic] | None = None
        self._asked_at = float("-inf")
        self._unknown: str | None = None
        self._loads = WorkerLoads(agents, metrics, clock)
        self._pairs: tuple[PairsReport, ...] = ()
        self._batches: BatchesStatus | None = None
        self._batches_asked_at = float("-inf")
        self._callers = HeardCallers(clock)
        self._speeds = PoolSpeeds()
        self._reported = ReportedModel()
        self._starts = StartTimes()
        self._forecast = ClusterForecast(sources, metrics, clock, unix_time)
        self._drift = PlacementDrift(clock, unix_time)
        self._comparing: asyncio.Task[None] | None = None
        self.update(cluster)
        # The first tick decides with which roles workers begin.
        self._speeds.expect(
            cluster=cluster.name, spec=cluster.spec, profiles=cluster.profiles, model=self._reported.model(cluster)
        )

    def update(self, cluster: WatchedCluster) -> None:
        """Take in what a tick saw."""
        self.cluster = cluster
        self._starts.observe(cluster.workers)

    def look_every(self, every_seconds: float, *, loads_every_seconds: float | None = None) -> None:
        """Change the pace, and that of load reports where it is another one.

        A cluster whose pace becomes the usual one again is looked at right now.
        """
        if every_seconds <= TICK_SECONDS < self._every_seconds:
            self._hurry.set()
        self._every_seconds = every_seconds
        self._slack_seconds = max(self._slack_seconds, every_seconds - TICK_SECONDS)
        self._loads.read_every(every_seconds if loads_every_seconds is None else loads_every_seconds)

    # What a tick reads; nothing here waits.

    @property
    def settled(self) -> bool:
        """Report whether something is known about traffic, or was long enough asked for to call it unknown."""
        return self._traffic is not None or (
            self._unknown is not None
            and self._clock() - self._started_at > 2 * pace_of(self.cluster.spec).window_seconds
        )

    def measurements(self) -> Measurements:
        """Return what is known now; parts that are too old are unknown."""
        now, spec = self._clock(), self.cluster.spec
        traffic = None
        fresh_seconds = FRESH_SECONDS + pace_of(spec).every_seconds + self._slack_seconds
        if self._traffic is not None and now - self._traffic[0] <= fresh_seconds:
            traffic = self._traffic[1]
        known = Measurements(
            traffic=traffic,
            pairs=self._pairs,
            kv_tiers=self._kv_tiers(),
            adapters=self._adapters(),
            batches=None if self.cluster.batch is None else self._batches,
            drift=self._drift.drift,
            paces=self._speeds.paces(),
        )
        if not decides(spec):
            return known
        forecast = self._forecast.latest()
        return dataclasses.replace(
            known,
            traffic=dataclasses.replace(traffic, prefix_hit=self._speeds.prefix_hit) if traffic is not None else None,
            forecast=forecast,
            speeds=self._speeds.speeds(),
            start_seconds=self._start_seconds,
            peak=self._forecast.peak if forecast is not None else None,
            callers=self._callers.callers() if spec.balance.idle_after is not None else None,
            load_expected_seconds=self._forecast.load_expected_seconds,
            unknown=None if traffic is not None else self._unknown or "The load has not been read yet.",
        )

    def loads(self) -> dict[str, LoadReport]:
        """Return the latest load of each worker by name, as far as decisions may rest on it."""
        return self._loads.decided_by(self.cluster)

    def shown(self) -> tuple[Traffic | None, dict[str, LoadReport]]:
        """Return traffic and the loads of all workers by name as people see them: in Manual, too, if less fresh."""
        return self.measurements().traffic, {worker.name: load for worker, load in self._loads.shown(self.cluster)}

    def _adapters(self) -> tuple[AdapterStatus, ...]:
        wanted = adapter_sources(self.cluster.spec)
        if not wanted:
            return ()
        return adapter_statuses(wanted, [load for worker, load in self._loads.shown(self.cluster) if worker.ready])

    def _kv_tiers(self) -> dict[str, KvTierStatus]:
        return kv_tiers((worker.pool, load) for worker, load in self._loads.shown(self.cluster))

    # What runs in the background.

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        share = random.random()  # noqa: S311 - spreads the clusters of a fleet over the time between two ticks
        try:
            while True:
                began = self._clock()
                self._hurry.clear()
                try:
                    await self._tick()
                except Exception:
                    # A defect here must not stop what is known from becoming old, nor take the operator along.
                    logger.exception("watch_failed namespace=%s cluster=%s", self.cluster.namespace, self.cluster.name)
                decided = decides(self.cluster.spec)
                every = self._every_seconds if decided else pace_of(self.cluster.spec).every_seconds
                if decided and every > TICK_SECONDS:
                    self._looked()  # nothing else makes the cluster due
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.1, share * every - (self._clock() - began))):
                        await self._hurry.wait()
                share = 1.0
        finally:
            self._forecast.cancel()
            if self._comparing is not None:
                self._comparing.cancel()

    async def _tick(self) -> None:
        cluster = self.cluster
        source = await self._sources.of(cluster.spec, cluster.namespace)
        # In Manual, too, speeds are learnt: Auto, once it is turned on, does not begin with what was measured at start.
        reads = [self._read_traffic(cluster, source), self._read_loads(cluster)]
        if cluster.gateways or self._pairs:
            reads.append(self._read_pairs(cluster))
        if cluster.spec.balance.idle_after is not None:
            reads.append(self._read_callers(cluster))
        if cluster.batch is not None or self._batches is not None:
            reads.append(self._read_batches(cluster))
        await asyncio.gather(*reads)
        if decides(cluster.spec):
            self._forecast.begin(cluster, source, start_seconds=self._start_seconds)
        self._begin_comparison(cluster)
        self._wake_if_changed()

    def _begin_comparison(self, cluster: WatchedCluster) -> None:
        """Compare the pools with a new plan from time to time, for the load that was measured."""
        if self._traffic is None or self._comparing is not None or self._clock() - self._traffic[0] > FRESH_SECONDS:
            return
        measured = dataclasses.replace(self._traffic[1], prefix_hit=self._speeds.prefix_hit)
        self._drift.see(measured, spec=cluster.spec, generation=cluster.generation)
        model = self._reported.model(cluster)
        question = self._drift.question(cluster.spec, model, cluster.generation, self._speeds.speeds())
        if question is not None:
            self._comparing = asyncio.create_task(
                self._compare(question), name=f"placement-{cluster.namespace}-{cluster.name}"
            )

    async def _compare(self, question: PlacementQuestion) -> None:
        try:
            found = await compare_in_background(question, self._sources.comparisons, self.cluster.namespace)
            if self._drift.take(question, found, published=self.cluster.status.recommendation):
                self._wake()
        except Exception:
            # A defect in the search costs a recommendation and nothing else.
            logger.exception("comparison_failed namespace=%s cluster=%s", *self.cluster.ref.key)
        finally:
            self._comparing = None

    async def _read_traffic(self, cluster: WatchedCluster, source: TelemetrySource) -> None:
        pace = pace_of(cluster.spec)
        if self._clock() - self._asked_at < pace.every_seconds - TICK_SECONDS / 2:
            return
        self._asked_at, now = self._clock(), self._unix_time()
        try:
            async with asyncio.timeout(SOURCE_SECONDS):
                if source is self._sources.scrape:
                    every_seconds = self._every_seconds if decides(cluster.spec) else pace.every_seconds
                    await self._sources.scrape.scrape(cluster.ref, cluster.gateways, now, every_seconds=every_seconds)
                answer = await source.traffic(cluster.ref, window_seconds=pace.window_seconds, now=now)
        except TimeoutError:
            answer = Unknown(f"The source of metrics did not answer within {SOURCE_SECONDS:g} s.")
        answer = self._sound(answer)
        if isinstance(answer, Unknown):
            self._metrics.telemetry_unknown(name_of(cluster.spec), "traffic")
            if self._unknown is None or _plain(self._unknown) != _plain(answer.reason):
                logger.warning("traffic_unknown namespace=%s cluster=%s why=%r", *cluster.ref.key, answer.reason)
                self._unknown = answer.reason
            return
        if self._unknown is not None:
            logger.info("traffic_known namespace=%s cluster=%s rate=%.3g", *cluster.ref.key, answer.rate)
        self._traffic, self._unknown = (self._clock(), answer), None
        self._slack_seconds = self._every_seconds - TICK_SECONDS

    def _sound(self, answer: Traffic | Unknown) -> Traffic | Unknown:
        """Drop what is no number where it enters: decisions reckon with numbers only."""
        if isinstance(answer, Unknown):
            return answer
        traffic, dropped = without_nonsense(answer)
        for figure in dropped:
            self._metrics.measurement_dropped(figure)
        return traffic or Unknown("The source of metrics gave a rate of requests that is no number.")

    async def _read_loads(self, cluster: WatchedCluster) -> None:
        found = await self._loads.read(cluster, awaited=any(each.loaded < each.workers for each in self._adapters()))
        if found is None:
            return
        self._reported.see(cluster, found.loads)
        variation = self._traffic[1].isl_cv2 if self._traffic is not None else None
        self._speeds.learn(
            cluster=cluster.name,
            spec=cluster.spec,
            workers=cluster.workers,
            loads=found.loads,
            at=found.made_at,
            isl_cv2=1.0 if variation is None else variation,
            profiles=cluster.profiles,
            model=self._reported.model(cluster),
        )

    async def _read_pairs(self, cluster: WatchedCluster) -> None:
        before = _failing(self._pairs)
        self._pairs = await self._agents.pairs(cluster.gateways)
        if _failing(self._pairs) != before:
            self._wake()

    async def _read_callers(self, cluster: WatchedCluster) -> None:
        if await self._callers.read(self._agents, cluster.gateways):
            self._wake()

    async def _read_batches(self, cluster: WatchedCluster) -> None:
        if cluster.batch is None:
            self._batches, self._batches_asked_at = None, float("-inf")
        elif self._clock() - self._batches_asked_at >= BATCHES_SECONDS - TICK_SECONDS / 2:
            self._batches_asked_at = self._clock()
            counts = await self._agents.batches(cluster.batch)
            self._batches = None if counts is None else batches_status(counts)

    @property
    def _start_seconds(self) -> float:
        measured = self._starts.typical_seconds
        return DEFAULT_START_SECONDS if measured is None else measured

    def _wake_if_changed(self) -> None:
        """Ask for a tick because of the status: one in Manual, or that is paused, has no other reason to come soon."""
        last, now = self.cluster.status, self.measurements()
        if self._clock() - self._woke_at < PUBLISH_SECONDS:
            return
        if (now.adapters or None) != last.adapters or (self.settled and with_measurements(last, now, last) != last):
            self._woke_at = self._clock()
            self._wake()
