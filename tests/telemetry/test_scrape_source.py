"""The embedded source: what it makes of gateways that answer, restart, come, go and fail."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from aiohttp import web
from tests.telemetry.gateways import two_gateways

from fulcrum.forecast.series import LoadSeries
from fulcrum.gateway.metrics.counts import Metrics, gauge
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry import ClusterRef, ScrapeSource, Unknown

CLUSTER = ClusterRef(namespace="prod", name="chat", gateways=2)
BEGIN = 1_800_000_000.0
A, B = "chat-gateway-a", "chat-gateway-b"


class FakeGateway:
    """Exports the metrics of a real one, and fails as it is told to."""

    def __init__(self, pod_name: str, ip: str) -> None:
        self.pod_name = pod_name
        self.ip = ip
        self.started_seconds = BEGIN - 1000
        self.metrics = Metrics(model="m", labels={"fulcrum_cluster": "chat", "fulcrum_namespace": "prod"})
        self.status = 200
        self.stalls = False

    def arrive(self, requests: int, *, prompt_tokens: int = 100) -> None:
        counts = self.metrics.of_class("default")
        counts.arrivals += requests
        for _ in range(requests):
            counts.prompt_tokens.observe(prompt_tokens)
            counts.output_tokens.observe(10)

    def restart(self, at: float) -> None:
        self.__init__(self.pod_name, self.ip)  # type: ignore[misc]
        self.started_seconds = at

    def page(self) -> str:
        info = gauge("info", "", ("model", "pod"), [(("m", self.pod_name), 1.0)])
        page = self.metrics.render([info]).decode()
        return re.sub(
            r"^process_start_time_seconds .*$",
            f"process_start_time_seconds {self.started_seconds}",
            page,
            flags=re.MULTILINE,
        )


class Site:
    """Two gateways on one port, and a source whose time the test keeps."""

    def __init__(self, source: ScrapeSource, gateways: dict[str, FakeGateway]) -> None:
        self.source = source
        self.gateways = gateways
        self.now = BEGIN

    def __getitem__(self, name: str) -> FakeGateway:
        return self.gateways[name]

    async def tick(self, *names: str, seconds: float = 2.0, every_seconds: float = 0.0) -> None:
        self.now += seconds
        listed = {name: self.gateways[name].ip for name in names or self.gateways}
        await self.source.scrape(CLUSTER, listed, self.now, every_seconds=every_seconds)

    async def ticks(self, count: int, *, requests: int = 0, names: tuple[str, ...] = ()) -> None:
        for _ in range(count):
            for gateway in self.gateways.values():
                gateway.arrive(requests)
            await self.tick(*names)

    async def traffic(self, window_seconds: float = 20.0) -> Traffic | Unknown:
        return await self.source.traffic(CLUSTER, window_seconds=window_seconds, now=self.now)

    async def rate(self, window_seconds: float = 20.0) -> float:
        traffic = await self.traffic(window_seconds)
        assert isinstance(traffic, Traffic), traffic
        return traffic.rate


@pytest.fixture
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    gateways = {A: FakeGateway(A, "127.77.4.1"), B: FakeGateway(B, "127.77.4.2")}

    async def metrics(request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        gateway = next(each for each in gateways.values() if each.ip == address)
        if gateway.stalls:
            await asyncio.sleep(600)
        return web.Response(status=gateway.status, text=gateway.page())

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.77.4.1", 0).start()
    port = runner.addresses[0][1]
    await web.TCPSite(runner, "127.77.4.2", port).start()
    async with ScrapeSource(port=port, deadline_seconds=getattr(request, "param", 60.0)) as source:
        yield Site(source, gateways)
    await runner.cleanup()


async def test_gateways_of_the_release_before_are_read_where_they_have_their_metrics(
    site: Site, unused_tcp_port: int
) -> None:
    async with ScrapeSource(port=unused_tcp_port, older_port=site.source._port, deadline_seconds=60.0) as source:
        older = Site(source, site.gateways)
        await older.ticks(12, requests=3)
        traffic = await older.traffic()
        assert isinstance(traffic, Traffic)
        assert traffic.rate == pytest.approx(3.0)


async def test_load_is_summed_over_gateways_from_the_second_scrape_on(site: Site) -> None:
    site[A].arrive(1000)  # before anybody looked
    assert "has not been scraped yet" in _reason(await site.traffic())
    await site.tick()
    assert "only 0 s of the last 20 s" in _reason(await site.traffic())
    await site.ticks(10, requests=3)
    traffic = await site.traffic()
    assert isinstance(traffic, Traffic)
    assert traffic.rate == pytest.approx(3.0)
    assert traffic.window_seconds == pytest.approx(20)
    assert traffic.isl_tokens == pytest.approx(100)
    assert traffic.osl_tokens == pytest.approx(10)


async def test_no_requests_are_a_true_zero(site: Site) -> None:
    await site.ticks(11)
    traffic = await site.traffic()
    assert isinstance(traffic, Traffic)
    assert (traffic.rate, traffic.isl_tokens, traffic.attainment) == (0.0, None, None)


async def test_a_restart_counts_from_zero(site: Site) -> None:
    await site.ticks(6, requests=4)
    site[A].restart(site.now + 1)
    await site.ticks(6, requests=4)
    assert await site.rate() == pytest.approx(4.0)


async def test_gateways_join_and_leave(site: Site) -> None:
    await site.ticks(6, requests=2, names=(A,))
    assert await site.rate(10) == pytest.approx(1.0)
    site[B].restart(site.now - 1)
    site[B].arrive(2)
    await site.tick()
    assert await site.rate(2) == pytest.approx(1.0), "all that a new gateway has counted came just now"
    await site.ticks(3, requests=2)
    assert await site.rate(6) == pytest.approx(2.0)
    await site.ticks(3, requests=2, names=(B,))
    assert await site.rate(6) == pytest.approx(1.0)


async def test_an_old_gateway_that_is_seen_late_brings_no_burst(site: Site) -> None:
    await site.ticks(4, names=(A,))
    site[B].arrive(100_000)
    await site.ticks(4)
    assert await site.rate(8) == 0.0


def stall(gateway: FakeGateway) -> None:
    gateway.stalls = True


def fail(gateway: FakeGateway) -> None:
    gateway.status = 500


def be_another_pod(gateway: FakeGateway) -> None:
    gateway.pod_name = "other-7"


def be_another_cluster(gateway: FakeGateway) -> None:
    gateway.metrics = Metrics(model="m", labels={"fulcrum_cluster": "other", "fulcrum_namespace": "prod"})


def be_elsewhere(gateway: FakeGateway) -> None:
    gateway.ip = "127.99.99.99"


@pytest.mark.parametrize(
    ("site", "harm", "words"),
    [
        (2.0, stall, "did not answer within 2 s"),
        (60.0, fail, "answered 500"),
        (60.0, be_another_pod, "is now that of other-7"),
        (60.0, be_another_cluster, "is now that of"),
        (60.0, be_elsewhere, "127.99.99.99"),
    ],
    indirect=["site"],
)
async def test_one_gateway_that_does_not_answer_makes_it_unknown(
    site: Site, harm: Callable[[FakeGateway], None], words: str
) -> None:
    await site.ticks(11, requests=2)
    harm(site[B])
    site.source._grace_seconds = 3.0
    await site.ticks(3, requests=2)
    for _ in range(5 if harm is stall else 0):  # where the machine is busy, the other one may be late once, too
        if f"{A} " in _reason(await site.traffic()):
            await site.tick()
    reason = _reason(await site.traffic())
    assert words in reason
    for part in (B, "prod/chat", "Look at the Pods of Deployment chat-gateway"):
        assert part in reason
    assert A not in reason.replace("chat-gateway,", "")


async def test_a_short_failure_loses_nothing(site: Site) -> None:
    await site.ticks(5, requests=2)
    site[B].status = 500
    await site.ticks(2, requests=2)
    assert await site.rate(10) == pytest.approx(2.0), "still within the grace"
    site[B].status = 200
    await site.ticks(3, requests=2)
    assert await site.rate(14) == pytest.approx(2.0)


async def test_a_scrape_that_fails_as_a_slow_pace_ends_loses_nothing(site: Site) -> None:
    """The first one at the quick pace comes when something is wrong: a gateway may be gone, too."""
    for _ in range(5):
        for name in (A, B):
            site[name].arrive(20)
        await site.tick(seconds=20.0, every_seconds=20.0)
    assert await site.rate(40) == pytest.approx(2.0)
    site[B].status = 500
    for name in (A, B):
        site[name].arrive(18)
    await site.tick(seconds=18.0, every_seconds=2.0)
    assert await site.rate(60) == pytest.approx(2.0), "still within the grace of the slow pace"
    site[B].status = 200
    for _ in range(10):
        for name in (A, B):
            site[name].arrive(2)
        await site.tick(every_seconds=2.0)
        assert await site.rate(60) == pytest.approx(2.0)
    # From then on it is the grace of the quick one.
    site.now += 16.0
    assert "the last scrape was 16 s ago" in _reason(await site.traffic())


async def test_a_long_failure_is_a_gap(site: Site) -> None:
    await site.ticks(30, requests=2)
    site[B].status = 500
    await site.ticks(30, requests=2)
    site[B].status = 200
    await site.tick()
    assert "only 0 s" in _reason(await site.traffic()), "what came meanwhile is no flow of the last two seconds"
    await site.ticks(30, requests=2)
    series = await site.source.load_series(CLUSTER, interval_seconds=20, history_seconds=400, now=site.now)
    assert isinstance(series, LoadSeries)
    known = series.rate[~np.isnan(series.rate)]
    assert known == pytest.approx([2.0] * len(known))
    assert 2 <= np.isnan(series.rate).sum() <= 4
    assert not np.isnan(series.rate[-1])


async def test_without_gateways_it_is_unknown(site: Site) -> None:
    await site.source.scrape(CLUSTER, {}, BEGIN)
    assert "no gateway is ready" in _reason(await site.traffic())


async def test_a_source_that_is_not_ticked_becomes_unknown(site: Site) -> None:
    await site.ticks(11)
    site.now += 60
    assert "the last scrape was 60 s ago" in _reason(await site.traffic())


async def test_clusters_are_apart_and_can_be_forgotten(site: Site) -> None:
    await site.ticks(11, requests=1)
    other = ClusterRef(namespace="test", name="chat", gateways=2)
    assert isinstance(await site.source.traffic(other, window_seconds=20, now=site.now), Unknown)
    assert isinstance(await site.traffic(), Traffic)
    site.source.forget(CLUSTER)
    assert isinstance(await site.traffic(), Unknown)


async def test_a_series_of_short_intervals_begins_with_the_details(site: Site) -> None:
    await site.ticks(20, requests=2)
    series = await site.source.load_series(CLUSTER, interval_seconds=2, history_seconds=30, now=site.now)
    assert isinstance(series, LoadSeries)
    assert (series.interval_seconds, len(series)) == (2, 15)
    assert series.rate == pytest.approx([2.0] * 15)


def _reason(answer: object) -> str:
    assert isinstance(answer, Unknown), answer
    return answer.reason


@pytest.mark.integration
async def test_real_gateways() -> None:
    async with two_gateways() as (one, two), ScrapeSource(port=one.inside_port, deadline_seconds=60.0) as source:
        gateways = {each.pod_name: each.host for each in (one, two)}
        began = time.time()
        await source.scrape(CLUSTER, gateways, began)
        await asyncio.gather(one.ask(20), two.ask(10))
        await source.scrape(CLUSTER, gateways, began + 2)
        traffic = await source.traffic(CLUSTER, window_seconds=2, now=began + 2)
        assert isinstance(traffic, Traffic), traffic
        assert (traffic.rate, traffic.isl_tokens, traffic.osl_tokens) == pytest.approx((15.0, 7.0, 3.0))
        assert (traffic.attainment, traffic.rejected) == (1.0, 0.0)
        assert traffic.ttft_p50_seconds is not None
        assert traffic.tpot_p50_seconds is not None
        await two.kill()
        await source.scrape(CLUSTER, gateways, began + 20)
        assert "chat-gateway-b" in _reason(await source.traffic(CLUSTER, window_seconds=2, now=began + 20))
