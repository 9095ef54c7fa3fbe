"""The source over a real Prometheus server that scrapes real gateways: what it knows, and when it does not."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from aiohttp import web
from tests.machine import deadline_seconds
from tests.prometheus_server import prometheus_server
from tests.telemetry.gateways import two_gateways

from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry import ClusterRef, PrometheusSource, Unknown
from fulcrum.telemetry.prometheus_calls import PrometheusCalls
from fulcrum.telemetry.prometheus_queries import _partial, _usual

CLUSTER = ClusterRef(namespace="prod", name="chat", gateways=2)
WINDOW_SECONDS = 4.0
Value = TypeVar("Value")


async def until(ask: Callable[[], Awaitable[Value]], holds: Callable[[Value], object], seconds: float = 90.0) -> Value:
    """Ask again until the answer is as wanted."""
    answer: Value | None = None
    try:
        async with asyncio.timeout(deadline_seconds(seconds)):
            while True:
                answer = await ask()
                if holds(answer):
                    return answer
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"after {seconds:g} s it is still {answer}")


def says(*words: str) -> Callable[[object], bool]:
    return lambda answer: isinstance(answer, Unknown) and all(word in answer.reason for word in words)


def is_traffic(answer: object) -> bool:
    return isinstance(answer, Traffic)


def is_whole(answer: object) -> bool:
    """Busy, with exact lengths; where a scrape came between two of the queries, what they are divided by is another."""
    return (
        isinstance(answer, Traffic)
        and answer.rate > 1
        and answer.isl_tokens == pytest.approx(7.0)
        and answer.osl_tokens == pytest.approx(3.0)
    )


@pytest.mark.integration
@pytest.mark.timeout(600)
async def test_a_real_prometheus_over_real_gateways(tmp_path: Path) -> None:
    """Two of its jobs scrape both gateways, as monitors beside annotations do: each gateway counts once."""
    async with (
        two_gateways() as (one, two),
        prometheus_server(tmp_path, one.target, two.target, same_jobs=2) as server,
        PrometheusCalls() as calls,
    ):
        source = PrometheusSource(server.url, deadline_seconds=60.0, calls=calls)
        impatient = PrometheusSource(server.url, deadline_seconds=3.0, calls=calls)

        async def traffic(cluster: ClusterRef = CLUSTER) -> Traffic | Unknown:
            return await source.traffic(cluster, window_seconds=WINDOW_SECONDS, now=time.time())

        # More steps than Prometheus takes in one query.
        async def series(cluster: ClusterRef = CLUSTER) -> LoadSeries | Unknown:
            return await source.load_series(cluster, interval_seconds=2.0, history_seconds=24_000.0, now=time.time())

        async def requests_of(cluster: ClusterRef = CLUSTER) -> float:
            known = await until(
                lambda: series(cluster), lambda answer: isinstance(answer, LoadSeries) and len(answer) >= 3
            )
            assert isinstance(known, LoadSeries)
            return float(np.nansum(known.rate) * known.interval_seconds)

        # Up and idle is a true zero; before it has scraped twice it is unknown.
        idle = await until(traffic, is_traffic)
        assert isinstance(idle, Traffic)
        assert (idle.rate, idle.isl_tokens, idle.attainment, idle.ttft_p50_seconds) == (0.0, None, None, None)

        counted: list[float] = []
        # PromQL does not stretch a window over a counter's zero, which every counter leaves once. Again where a busy
        # machine made Prometheus lose a scrape.
        while (not counted or counted[-1] != pytest.approx(30, rel=0.25)) and len(counted) < 5:
            before = await requests_of()
            await asyncio.gather(one.ask(20), two.ask(10))
            busy = await until(traffic, is_whole)
            await until(traffic, lambda answer: isinstance(answer, Traffic) and answer.rate == 0)
            counted.append(await requests_of() - before)
        assert counted[-1] == pytest.approx(30, rel=0.25), counted
        assert isinstance(busy, Traffic)
        assert busy.attainment == pytest.approx(1.0)
        assert busy.rejected == 0.0
        assert busy.ttft_p90_seconds is not None
        assert 0 < busy.ttft_p90_seconds < 30

        known = await until(series, lambda answer: isinstance(answer, LoadSeries))
        assert isinstance(known, LoadSeries)
        assert not math.isnan(known.rate[0])
        assert np.nanmean(known.isl_tokens) == pytest.approx(7.0)
        assert np.nanmean(known.osl_tokens) == pytest.approx(3.0)

        # Another cluster's, or a wrong name's, series are absent, and absent is not zero.
        other = await traffic(ClusterRef(namespace="prod", name='cha"t', gateways=1))
        assert says("has no series", "Status > Targets", server.url)(other)
        assert says("no gateway is ready")(await traffic(ClusterRef(namespace="prod", name="chat", gateways=0)))
        assert says("scrapes 2 of 3")(await traffic(ClusterRef(namespace="prod", name="chat", gateways=3)))

        await two.kill()
        await until(traffic, says("scrapes 1 of 2 gateways"))
        await until(series, says("scrapes 1 of 2 gateways"))
        alone = ClusterRef(namespace="prod", name="chat", gateways=1)
        await until(lambda: traffic(alone), is_traffic)

        server.freeze()
        began = time.monotonic()
        frozen = await impatient.traffic(alone, window_seconds=WINDOW_SECONDS, now=time.time())
        assert says("did not answer within 3 s")(frozen)
        assert time.monotonic() - began < deadline_seconds(30)  # it never answers
        server.thaw()
        await until(lambda: traffic(alone), is_traffic)

        await server.stop()
        assert says(server.url, "cannot be reached", "Connection refused")(await traffic(alone))
        assert says(server.url, "cannot be reached")(await series(alone))
        await server.start()
        await until(lambda: traffic(alone), is_traffic)
        assert await requests_of(alone) > 20, "history has survived"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, "<html>", ("does not answer like Prometheus", "metrics.prometheus.url")),
        (200, "{}", ("does not answer like Prometheus",)),
        (200, '{"data": {"result": [{"metric": {}, "value": [1, "NaN"]}]}}', ("NaN",)),
        (200, '{"data": {"result": []}}', ("has no series",)),
        (200, '{"data": {"result": [{"metric": {}, "value": [1, "5"]}]}}', ("the newest sample", "s old")),
        (503, "starting", ("refused a query", "503")),
        (401, "who are you?", ("refused a query", "401")),
    ],
)
async def test_what_is_no_answer_is_unknown(status: int, body: str, words: tuple[str, ...]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with PrometheusCalls() as calls:
            source = PrometheusSource(f"http://127.0.0.1:{runner.addresses[0][1]}/", calls=calls)
            assert says(*words)(await source.traffic(CLUSTER, window_seconds=30, now=1000.0))
            assert says(*words)(
                await source.load_series(CLUSTER, interval_seconds=60, history_seconds=3600, now=1000.0)
            )
    finally:
        await runner.cleanup()


N = math.nan


@pytest.mark.parametrize(
    ("samples", "partial"),
    [
        ([], [True, True, True]),
        ([[4, 4, 4]], [False, False, False]),
        ([[N, N, N]], [True, True, True]),
        ([[N, 4, 4]], [True, False, False]),
        ([[1, 4, 4]], [True, False, False]),  # one scrape has no increase
        ([[4, 1, 4], [4, 4, 4]], [False, True, False]),  # one of two was away
        ([[4, N, 4], [4, 4, 4]], [False, True, False]),
        ([[N, 2, 4], [4, 4, 4]], [False, False, False]),  # joined
        ([[4, 1, N], [4, 4, 4]], [False, False, False]),  # left
        ([[4, 4, 1], [4, 4, 4]], [False, False, True]),  # is away
    ],
)
def test_partial_intervals(samples: list[list[float]], partial: list[bool]) -> None:
    arrays = [np.array(each, dtype=float) for each in samples]
    assert _partial(arrays, _usual(arrays), 3).tolist() == partial
