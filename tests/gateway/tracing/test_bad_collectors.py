"""Collectors that are slow, broken or hostile: requests are served all the same, and lost spans are counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
from tests.gateway.conftest import Engine, MakeSite, Site, eventually
from tests.gateway.tracing.collector import collecting, traced, well
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.gateway.tracing import export

BODY = {"model": "m", "prompt": "a b", "max_tokens": 3}
GIGABYTE = 1 << 30


def answering(status: int, *headers: tuple[str, str]) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for header in (*headers, ("content-length", "0")):
            handler.send_header(*header)
        handler.end_headers()

    return answer


async def counted(site: Site, outcome: str, number: int) -> None:
    tracing = site.gateway.tracing
    assert tracing is not None
    await eventually(lambda: tracing.counts()[outcome] == number)
    assert await site.metric(f'fulcrum_gateway_trace_spans_total{{outcome="{outcome}"}}') == number


@pytest.mark.parametrize(
    "answer",
    [
        answering(500),
        answering(400),
        answering(302, ("location", "/elsewhere")),
        answering(429, ("retry-after", "900")),
    ],
    ids=["500", "400", "redirect", "429"],
)
async def test_refused_spans_are_counted(make_site: MakeSite, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
    with collecting(answer) as collector:
        site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
        assert (await site.post(BODY)).status == 200
        await counted(site, "failed", 2)
        assert collector.paths == ["/v1/traces"], "a redirect is not followed"
        assert (await site.post(BODY)).status == 200
        await counted(site, "failed", 4)


async def test_an_answer_of_a_gigabyte_is_not_read(make_site: MakeSite) -> None:
    sent: list[int] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", str(GIGABYTE))
        handler.end_headers()
        bytes_sent = 0
        try:
            while bytes_sent < GIGABYTE:
                bytes_sent += handler.wfile.write(bytes(1 << 20))
        except OSError:
            handler.close_connection = True
        sent.append(bytes_sent)

    with collecting(answer) as collector:
        site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
        assert (await site.post(BODY)).status == 200
        await counted(site, "exported", 2)
        await eventually(lambda: bool(sent))
        assert sent[0] < GIGABYTE / 16, "what the kernel's buffers hold"


async def test_a_slow_collector_costs_spans_and_no_request(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "QUEUE_SPANS", 8)
    monkeypatch.setattr(export, "_BATCH_SPANS", 4)
    monkeypatch.setattr(export, "EXPORT_SECONDS", 600.0)
    go_on = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        go_on.wait()
        well(handler)

    with collecting(answer) as collector:
        try:
            site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
            for _ in range(10):
                assert (await site.post(BODY)).status == 200
            await counted(site, "dropped", 12)
        finally:
            go_on.set()
        await counted(site, "exported", 8)
        assert (await site.post(BODY)).status == 200
        await counted(site, "exported", 10)


async def test_a_collector_that_answers_byte_by_byte_does_not_hold_a_gateway_that_stops(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "EXPORT_SECONDS", 1.0)
    begun, over = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while not over.wait(0.02):
            begun.set()
            handler.wfile.write(b"x")
            handler.wfile.flush()
        handler.close_connection = True

    with collecting(answer) as collector:
        try:
            site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
            assert (await site.post(BODY)).status == 200
            await eventually(begun.is_set)
            async with asyncio.timeout(deadline_seconds(10)):  # the SDK alone waits 30 s
                await site.gateway.stop()
        finally:
            over.set()


async def test_a_collector_that_never_answers_is_given_up(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "EXPORT_SECONDS", 0.2)
    never = threading.Event()
    with collecting(lambda _: never.wait() and None) as collector:
        try:
            site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
            assert (await site.post(BODY)).status == 200
            await counted(site, "failed", 2)
        finally:
            never.set()
