"""What is known of a cluster's load, when, and for how long: the sources and the clock are the test's own."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.controller.cluster import eventually

from fulcrum.api.batch import BatchCounts
from fulcrum.api.gateway import FailingPair, LoadsReport, PairsReport
from fulcrum.api.names import Role
from fulcrum.api.types import BatchesStatus, InferenceClusterSpec, InferenceClusterStatus, KvTierStatus
from fulcrum.api.worker import LoadReport, OffloadReport, SpeedCoefficients, WorkCounters
from fulcrum.capacity.speed import SpeedSource
from fulcrum.controller import cluster_watch
from fulcrum.controller.cluster_watch import FRESH_SECONDS, ClusterWatch
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.published import PUBLISH_SECONDS, with_measurements
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import ObservedWorker, WorkerPhase
from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic
from fulcrum.rollout import worker_revision
from fulcrum.telemetry.source import ClusterRef, Unknown
from fulcrum.telemetry.turns import Turns

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
BUSY = Traffic(
    window_seconds=30.0,
    rate=5.0,
    isl_tokens=1000.0,
    osl_tokens=100.0,
    attainment=0.91239,
    ttft_p50_seconds=0.12345,
    ttft_p90_seconds=0.5,
    tpot_p50_seconds=0.02,
    tpot_p90_seconds=0.03,
    rejected=0.0,
)

IDLE = Traffic(window_seconds=30.0, rate=0.0)


def spec_of(mode: str = "Auto", *, model: str = "m", accelerator: str = "cpu", **balance: Any) -> InferenceClusterSpec:
    document = {
        "model": {"name": model},
        "pools": [{"name": "p", "accelerator": accelerator, "workers": {"max": 2}}],
        "balance": {"mode": mode, "forecast": {"interval": "10s", "seasonality": "1h", **balance}},
    }
    return msgspec.convert(document, InferenceClusterSpec)


def worker(ordinal: int, role: Role = Role.PREFILL, *, started_seconds: float = 40.0) -> ObservedWorker:
    return ObservedWorker(
        name=f"c-p-{ordinal}",
        uid=f"u{ordinal}",
        pool="p",
        ordinal=ordinal,
        role=role,
        role_epoch=0,
        spec_hash=worker_revision(cluster="c", spec=spec_of(), pool=spec_of().pools[0]),
        phase=WorkerPhase.RUNNING,
        ready=True,
        deleting=False,
        pod_ip=f"10.0.0.{ordinal}",
        created=CREATED,
        ready_since=CREATED + timedelta(seconds=started_seconds),
    )


def report(running: int = 1) -> LoadReport:
    return LoadReport(
        role=Role.PREFILL,
        role_epoch=0,
        ready=True,
        draining=False,
        running=running,
        waiting=0,
        kv_capacity_tokens=100_000,
        speed=SpeedCoefficients(
            prefill_a=0.01, prefill_b=1e-4, prefill_c=0.0, decode_a=0.01, decode_b=1e-4, decode_c=0.0
        ),
    )


class World:
    """A source, agents and a clock."""

    def __init__(self, mode: str = "Auto", **balance: Any) -> None:
        self.seconds = 1000.0
        self.answer: Traffic | Unknown = BUSY
        self.hangs = False
        self.series: LoadSeries | Unknown = Unknown("not yet")
        self.asked_series = 0
        self.asked_loads = 0
        self.asked_traffic = 0
        self.asked_batches = 0
        self.counts: BatchCounts | None = None
        self.reports: dict[str, LoadReport | None] = {}
        self.heard: LoadsReport | None = None
        self.asked_workers: list[str] = []
        self.pairs_reports: tuple[PairsReport, ...] = ()
        self.woken = self.looked = 0
        self.scrape = object()
        self.forecasts, self.comparisons = Turns(1), Turns(1)
        self.watched = WatchedCluster(
            namespace="ns",
            name="c",
            spec=spec_of(mode, **balance),
            status=InferenceClusterStatus(),
            gateways={"g": "10.1.1.1"},
            workers=(worker(0), worker(1, Role.DECODE, started_seconds=60.0)),
        )
        self.metrics = Metrics()
        self.watch = ClusterWatch(
            self.watched,
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.metrics,
            wake=self._wake,
            looked=self._look,
            clock=lambda: self.seconds,
            unix_time=lambda: 1e9 + self.seconds,
        )

    def _wake(self) -> None:
        self.woken += 1

    def _look(self) -> None:
        self.looked += 1

    def settled(self) -> bool:
        return self.watch.settled

    async def of(self, _spec: InferenceClusterSpec, _namespace: str) -> World:
        return self

    async def loads(self, pod_ips: dict[str, str]) -> dict[str, LoadReport | None]:
        self.asked_loads += 1
        self.asked_workers += pod_ips
        return {name: self.reports.get(name) for name in pod_ips}

    async def heard_loads(self, gateway_ips: dict[str, str]) -> LoadsReport | None:
        assert gateway_ips == self.watched.gateways
        return self.heard

    async def pairs(self, gateway_ips: dict[str, str]) -> tuple[PairsReport, ...]:
        assert gateway_ips == self.watched.gateways
        return self.pairs_reports

    async def batches(self, batch_ip: str) -> BatchCounts | None:
        assert batch_ip == self.watched.batch
        self.asked_batches += 1
        return self.counts

    async def traffic(self, _cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        self.asked_traffic += 1
        if self.hangs:
            await asyncio.sleep(3600)
        return self.answer

    async def load_series(
        self, _cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        self.asked_series += 1
        return self.series

    async def tick(self, *, after_seconds: float = 2.0) -> None:
        self.seconds += after_seconds
        await self.watch._tick()
        while self.watch._forecast.making is not None:
            await asyncio.wait({self.watch._forecast.making})
            await asyncio.sleep(0)


def series(*rates: float) -> LoadSeries:
    rate = np.array(rates)
    return LoadSeries(
        interval_seconds=10.0,
        end_seconds=1e9,
        rate=rate,
        isl_tokens=np.full(len(rate), 500.0),
        osl_tokens=np.full(len(rate), 50.0),
    )


async def test_nothing_is_known_at_first_and_an_outage_is_bridged_for_a_while() -> None:
    world = World()
    first = world.watch.measurements()
    assert (first.traffic, first.forecast, first.speeds) == (None, None, {})
    assert first.unknown == "The load has not been read yet."
    assert not world.settled()
    await world.tick()
    assert world.watch.measurements().traffic == BUSY
    assert world.watch.measurements().unknown is None
    assert world.settled()
    world.answer = Unknown("Prometheus is down.")
    await world.tick(after_seconds=10.0)
    assert world.watch.measurements().traffic == BUSY
    await world.tick(after_seconds=FRESH_SECONDS)
    measurements = world.watch.measurements()
    assert (measurements.traffic, measurements.unknown) == (None, "Prometheus is down.")
    assert b'fulcrum_operator_telemetry_unknown_total{asked="traffic",source="scrape"} 2.0' in world.metrics.page()
    world.answer = IDLE
    await world.tick()
    assert world.watch.measurements().traffic == IDLE


async def test_a_calm_cluster_is_looked_at_rarely_and_what_is_known_stands_as_long() -> None:
    world = World()
    world.reports = {"c-p-0": report(3)}
    await world.tick()
    world.watch.look_every(30.0)
    world.seconds += 40.0
    assert world.watch.measurements().traffic == BUSY
    assert world.watch.loads()["c-p-0"].running == 3
    # As soon as it is looked at closely again, what was read at the slow pace stands until traffic was read.
    world.watch.look_every(2.0)
    world.answer = Unknown("a gateway went")
    await world.tick()
    assert world.watch.measurements().traffic == BUSY
    world.answer = BUSY
    await world.tick()
    world.seconds += 40.0
    assert world.watch.measurements().traffic is None
    assert world.watch.loads() == {}


async def test_reports_of_a_calm_clusters_workers_are_read_rarely_and_stand_as_long() -> None:
    world = World()
    world.reports = {"c-p-0": report(3)}
    await world.tick()
    world.watch.look_every(2.0, loads_every_seconds=10.0)
    asked, traffic_asked = world.asked_loads, world.asked_traffic
    for _ in range(20):
        await world.tick()
        assert world.watch.loads()["c-p-0"].running == 3
    assert (world.asked_loads - asked, world.asked_traffic - traffic_asked) == (4, 20)
    # A cluster that is no longer calm is asked in its next look, and is as fresh as ever from then on.
    await world.tick()
    asked = world.asked_loads
    world.watch.look_every(2.0)
    world.reports = {"c-p-0": report(4)}
    await world.tick()
    assert (world.asked_loads, world.watch.loads()["c-p-0"].running) == (asked + 1, 4)
    world.seconds += 10.0
    assert world.watch.loads() == {}


async def test_a_gateway_tells_the_loads_of_a_calm_cluster_and_only_workers_that_it_does_not_know_are_asked() -> None:
    world = World()
    world.reports = {"c-p-0": report(1), "c-p-1": report(2)}
    world.heard = LoadsReport(age_seconds=1.0, loads={"c-p-0": report(7), "another": report(9)})
    await world.tick()
    assert world.asked_workers == ["c-p-0", "c-p-1"], "decided by: each worker says itself what it does"
    world.watch.look_every(2.0, loads_every_seconds=10.0)
    await world.tick(after_seconds=10.0)
    assert world.asked_workers[2:] == ["c-p-1"]
    assert {name: load.running for name, load in world.watch.loads().items()} == {"c-p-0": 7, "c-p-1": 2}
    world.heard = None
    await world.tick(after_seconds=10.0)
    assert world.asked_workers[3:] == ["c-p-0", "c-p-1"]
    # What was told is as old as the gateway says.
    world.heard = LoadsReport(age_seconds=4.0, loads={"c-p-0": report(8), "c-p-1": report(3)})
    await world.tick(after_seconds=10.0)
    world.watch.look_every(2.0)
    world.heard = None
    world.reports = {"c-p-1": report(4)}
    await world.tick()
    assert {name: load.running for name, load in world.watch.loads().items()} == {"c-p-0": 8, "c-p-1": 4}
    world.seconds += 1.0
    assert set(world.watch.loads()) == {"c-p-1"}


async def test_a_worker_that_is_new_in_a_calm_cluster_is_asked_in_the_next_look() -> None:
    world = World()
    old, new = world.watched.workers
    world.reports = {"c-p-0": report(3), "c-p-1": report(1)}
    starting = dataclasses.replace(new, ready=False)
    world.watch.update(dataclasses.replace(world.watched, workers=(old, starting)))
    await world.tick()
    world.watch.look_every(2.0, loads_every_seconds=10.0)
    await world.tick()
    assert set(world.watch.loads()) == {"c-p-0"}
    world.watch.update(world.watched)
    await world.tick()
    assert set(world.watch.loads()) == {"c-p-0", "c-p-1"}
    asked = world.asked_loads
    world.watch.update(dataclasses.replace(world.watched, workers=(old,)))
    await world.tick()
    assert world.asked_loads == asked, "one that goes is no reason to ask the others"


async def test_a_calm_cluster_gets_a_tick_after_each_look_and_a_look_at_once_when_it_is_no_longer_calm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_watch, "TICK_SECONDS", 0.01)
    world = World()
    world.watch.look_every(0.011)
    looks = world.looked
    task = asyncio.create_task(world.watch.run())

    async def looked() -> bool:
        return world.looked >= looks + 2

    await eventually(looked)
    world.watch.look_every(3600.0)
    looks = world.looked

    async def waits() -> bool:
        return world.looked > looks

    await eventually(waits)
    asked = world.asked_loads
    world.seconds += 10.0
    world.watch.look_every(0.01)

    async def asked_again() -> bool:
        return world.asked_loads > asked

    await eventually(asked_again)
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("mode", ["Auto", "Manual"])
async def test_a_pair_that_fails_asks_for_a_turn_at_once_and_so_does_its_cure(mode: str) -> None:
    world = World(mode)
    await world.tick()
    woken = world.woken
    failing = FailingPair(prefill="c-p-0", decode="c-p-1", failures=1, seconds=0.0)
    world.pairs_reports = (PairsReport(failing=(failing,)),)
    await world.tick()
    assert world.woken == woken + 1
    assert world.watch.measurements().pairs == world.pairs_reports
    world.pairs_reports = (PairsReport(failing=(msgspec.structs.replace(failing, failures=2),)),)
    await world.tick()
    assert world.woken == woken + 1, "nothing new"
    assert world.watch.measurements().pairs[0].failing[0].failures == 2
    world.pairs_reports = (PairsReport(),)
    await world.tick()
    assert world.woken == woken + 2


async def test_figures_that_are_no_numbers_are_dropped_and_counted() -> None:
    world = World()
    world.answer = dataclasses.replace(BUSY, isl_tokens=float("nan"), ttft_p90_seconds=float("inf"))
    await world.tick()
    assert world.watch.measurements().traffic == dataclasses.replace(BUSY, isl_tokens=None, ttft_p90_seconds=None)
    world.answer = dataclasses.replace(BUSY, rate=float("nan"))
    await world.tick(after_seconds=2 * FRESH_SECONDS)
    assert world.watch.measurements().traffic is None
    for figure in ("isl_tokens", "ttft_p90_seconds", "rate"):
        line = f'fulcrum_operator_measurements_dropped_total{{figure="{figure}"}} 1.0'
        assert line.encode() in world.metrics.page()


async def test_a_source_that_hangs_becomes_unknown_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "SOURCE_SECONDS", 0.05)
    world = World()
    world.hangs = True
    task = asyncio.create_task(world.watch.run())
    await asyncio.sleep(0)
    assert world.watch.measurements().traffic is None  # at once

    async def unknown() -> bool:
        return "did not answer" in (world.watch.measurements().unknown or "")

    await eventually(unknown)
    task.cancel()
    await asyncio.wait({task})


async def test_loads_are_handed_out_while_fresh_and_never_for_the_end_of_a_drain() -> None:
    world = World()
    world.reports = {"c-p-0": report(3), "c-p-1": None}
    await world.tick()
    assert {name: load.running for name, load in world.watch.loads().items()} == {"c-p-0": 3}
    drains = dataclasses.replace(world.watched.workers[0], role=Role.DRAINING)
    world.watch.update(dataclasses.replace(world.watched, workers=(drains,)))
    assert world.watch.loads() == {}
    world.watch.update(world.watched)
    world.seconds += 60.0
    assert world.watch.loads() == {}


@pytest.mark.parametrize("mode", ["Auto", "Manual"])
async def test_kv_tiers_are_told_in_every_mode_and_ask_for_a_tick(mode: str) -> None:
    world = World(mode)
    await world.tick(after_seconds=60.0)
    assert world.watch.measurements().kv_tiers == {}
    woken = world.woken
    tier = OffloadReport(policy="load", host_bytes=1 << 30, host_used=0.5)
    world.reports = {"c-p-0": msgspec.structs.replace(report(), offload=tier), "c-p-1": report()}
    await world.tick(after_seconds=60.0)
    assert world.watch.measurements().kv_tiers == {"p": KvTierStatus(host_usage=0.5)}
    assert world.woken > woken
    world.seconds += 600.0
    assert world.watch.measurements().kv_tiers == {}, "too old"


async def test_what_model_and_hardware_say_is_known_in_the_first_turn() -> None:
    known = World(model="meta-llama/Llama-3.1-8B-Instruct", accelerator="H100-SXM-80GB").watch.measurements()
    assert known.speeds["p"].source is SpeedSource.ROOFLINE
    assert known.traffic is None
    assert World().watch.measurements().speeds == {}


async def test_speed_comes_from_the_workers() -> None:
    world = World()
    world.reports = {"c-p-0": report()}
    await world.tick()
    speed = world.watch.measurements().speeds["p"]
    assert speed.coefficients.prefill_b == pytest.approx(1e-4)
    assert speed.kv_capacity_tokens == 100_000
    world.reports = {}
    await world.tick()
    assert world.watch.measurements().speeds["p"] == speed  # nobody answers: it is still as fast


async def test_a_forecast_is_made_once_per_interval_and_reaches_as_far_as_a_start_takes() -> None:
    world = World()
    world.series = series(*[4.0] * 40)
    await world.tick()
    assert world.asked_series == 1
    forecast = world.watch.measurements().forecast
    assert forecast is not None
    assert forecast.rate[-1] == pytest.approx(4.0, rel=0.05)
    assert world.watch.measurements().start_seconds == 50.0
    assert len(forecast.rate) == 6  # 50 s and a tick, in intervals of 10 s
    peak = world.watch.measurements().peak
    assert peak is not None
    assert peak.rate == 4.0
    for _ in range(3):
        await world.tick()
    assert world.asked_series == 1
    await world.tick(after_seconds=10.0)
    assert world.asked_series == 2
    # A source that has gone away leaves the forecast for a while.
    world.series = Unknown("gone")
    await world.tick(after_seconds=15.0)
    assert world.watch.measurements().forecast is not None
    await world.tick(after_seconds=30.0)
    assert world.watch.measurements().forecast is None
    assert world.watch.measurements().peak is None


async def test_the_horizon_of_the_spec_counts() -> None:
    world = World(horizon="2m")
    world.series = series(*[4.0] * 40)
    await world.tick()
    forecast = world.watch.measurements().forecast
    assert forecast is not None
    assert forecast.horizon_seconds == 120.0


async def test_in_manual_a_turn_is_asked_for_when_the_status_should_say_something_else() -> None:
    world = World("Manual")
    world.reports = {"c-p-0": report()}
    world.series = series(1.0)
    await world.tick()
    assert world.woken == 0  # too soon after the last turn
    await world.tick(after_seconds=PUBLISH_SECONDS)
    assert world.woken == 1
    measurements = world.watch.measurements()
    assert (measurements.speeds, measurements.forecast, world.asked_series) == ({}, None, 0)
    world.watch.update(
        dataclasses.replace(
            world.watched, status=with_measurements(world.watched.status, measurements, world.watched.status)
        )
    )
    await world.tick(after_seconds=PUBLISH_SECONDS)
    assert world.woken == 1
    # The fourth digit is no news, an end of the traffic is.
    world.answer = dataclasses.replace(BUSY, ttft_p50_seconds=0.12349)
    await world.tick(after_seconds=PUBLISH_SECONDS)
    assert world.woken == 1
    world.answer = IDLE
    await world.tick(after_seconds=PUBLISH_SECONDS)
    assert world.woken == 2


@pytest.mark.parametrize(("mode", "most"), [("Manual", 4), ("Auto", 16)])
async def test_agents_are_asked_rarely_where_no_decision_rests_on_them(mode: str, most: int) -> None:
    world = World(mode)
    for _ in range(15):
        await world.tick(after_seconds=7.0)
    assert most / 2 < world.asked_loads <= most


async def test_what_was_learnt_in_manual_is_known_in_auto() -> None:
    world = World("Manual")
    work = WorkCounters(
        prompts=0, prompt_tokens=0, cached_tokens=0, prefill_seconds=0.0, decode_tokens=0, decode_seconds=0.0
    )
    for second in range(0, 120, 5):  # 5 prompts of 1,000 tokens in 5 s; 0.5 s each, where 0.11 s was measured at start
        seen = msgspec.structs.replace(work, prompts=second, prompt_tokens=1000 * second, prefill_seconds=0.5 * second)
        world.reports = {"c-p-0": msgspec.structs.replace(report(), work=seen)}
        await world.tick(after_seconds=5.0)
    assert (world.watch.loads(), world.watch.measurements().speeds) == ({}, {})
    world.watch.update(dataclasses.replace(world.watched, spec=spec_of("Auto")))
    assert world.watch.measurements().speeds["p"].prefill_seconds(1000, 1000**2) == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("answer", [IDLE, Unknown("no gateway")])
async def test_an_idle_manual_cluster_is_left_alone(answer: Traffic | Unknown) -> None:
    world = World("Manual")
    world.answer = answer
    for _ in range(40):
        await world.tick(after_seconds=5.0)
    assert world.woken == 0


async def test_batches_are_read_every_30_seconds_and_known_while_their_pod_answers() -> None:
    world = World(mode="Manual")
    await world.tick()
    assert (world.asked_batches, world.watch.measurements().batches) == (0, None)
    world.watched = dataclasses.replace(world.watched, batch="10.0.0.9")
    world.watch.update(world.watched)
    world.counts = BatchCounts(waiting=1, running=2, requests=40, completed=-1, failed=3)
    await world.tick()
    found = BatchesStatus(waiting=1, running=2, requests=40, completed=0, failed=3)
    assert world.watch.measurements().batches == found
    world.counts = BatchCounts(running=2, requests=40, completed=9)
    for _ in range(14):
        await world.tick()
    assert (world.asked_batches, world.watch.measurements().batches) == (1, found)
    assert world.woken, "a cluster in Manual has no other reason to look at its status"
    await world.tick()
    assert world.asked_batches == 2
    assert world.watch.measurements().batches == BatchesStatus(waiting=0, running=2, requests=40, completed=9, failed=0)
    world.counts = None
    await world.tick(after_seconds=30.0)
    assert world.watch.measurements().batches is None
    world.watched = dataclasses.replace(world.watched, batch=None)
    world.watch.update(world.watched)
    await world.tick(after_seconds=30.0)
    assert world.asked_batches == 3
