"""Engines that answer like vLLM at the byte level, because a real one cannot be made to reset, stall or break off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from _loopback.launch import free_ports
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayConfig, GatewayLimits
from fulcrum.api.names import Role
from fulcrum.gateway.api_formats.inference_request import ServedModel
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings
from fulcrum.gateway.gauges import gauges
from fulcrum.gateway.worker_record import WorkerRecord

SERVED = ServedModel(name="m")
KV = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": "h"}


FIELDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "vllm_fields.json").read_text())
"""What vLLM reads on each route (tests/benchmarks/test_request_models.py compares)."""


@dataclass
class Seen:
    """One request as an engine saw it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def read(self) -> dict[str, Any]:
        """What an engine reads of the body: on each route only the fields that vLLM has there."""
        names = FIELDS.get(self.path)
        return self.body if names is None else {name: each for name, each in self.body.items() if name in names}

    @property
    def leg(self) -> str:
        kv = self.body.get("kv_transfer_params")
        if kv is None or kv.keys() == {"ttft_seconds"}:
            return "whole"
        return "prefill" if kv.get("do_remote_decode") else "decode"


Behave = Callable[["Engine", Seen, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class Engine:
    """A server on a free port. `behave` may answer a request its own way (and return True)."""

    name: str
    role: Role
    tokens: int = 3
    behave: Behave | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """More of its record: pool, revision, agent_port ..."""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    gone: int = 0
    """Connections that the gateway closed while a request was under way."""
    host: str = "127.0.0.1"
    port: int = 0
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    handlers: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        if not self.port:
            (self.port,) = free_ports(1, self.host)
        self.server = await asyncio.start_server(self._serve, self.host, self.port)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        for handler in list(self.handlers):
            handler.cancel()
        await asyncio.gather(*self.handlers, return_exceptions=True)
        if self.server is not None:
            await self.server.wait_closed()

    def record(self) -> WorkerRecord:
        return WorkerRecord(name=self.name, role=self.role, host=self.host, port=self.port, **self.facts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        handler = asyncio.current_task()
        assert handler is not None
        self.handlers.add(handler)
        try:
            while True:
                request_line = await reader.readline()
                if not request_line:
                    return
                headers = {}
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                if "content-length" not in headers:  # a GET, as of a heartbeat
                    await self.send(writer, 200, {})
                    continue
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                seen = Seen(request_line.decode().split()[1], headers, body)
                answer = asyncio.ensure_future(self._answer(seen, writer))
                leaving = asyncio.ensure_future(_wait_for_eof(reader))
                await asyncio.wait([answer, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    self.gone += 1
                    answer.cancel()
                    return
                leaving.cancel()
                await answer
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            self.handlers.discard(handler)
            writer.transport.abort()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.seen.append(seen)  # in one go with the look at `behave`: tests that see it may change that at once
        if self.behave is not None and await self.behave(self, seen, writer):
            return
        if seen.body.get("stream"):
            await self.stream(seen, writer)
        else:
            await self.whole(seen, writer)

    async def whole(self, seen: Seen, writer: asyncio.StreamWriter, **extra: Any) -> None:
        read = seen.read
        most = read.get("max_completion_tokens") or read.get("max_tokens") or self.tokens
        count = 1 if seen.leg == "prefill" else min(self.tokens, most)
        answer = {
            "id": seen.headers["x-request-id"],
            "choices": [{"text": f"{self.name} " * count}],
            "usage": {"prompt_tokens": 7, "completion_tokens": count},
            "kv_transfer_params": {**KV, "from": self.name} if seen.leg == "prefill" else None,
            **extra,
        }
        await self.send(writer, 200, answer)

    async def send(self, writer: asyncio.StreamWriter, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"
            % (status, len(body), body)
        )
        await writer.drain()

    async def head(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await writer.drain()

    async def event(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    async def stream(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await self.head(writer)
        for number in range(self.tokens):
            await self.event(writer, json.dumps({"choices": [{"text": f"{self.name}{number} "}]}))
        await self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _wait_for_eof(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():  # noqa: ASYNC110  (a stream reader has no event for its end)
        await asyncio.sleep(0.01)


@dataclass
class Answered:
    """An HTTP answer as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    """The body ended as its framing says."""

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: object, path: str = "/v1/completions", headers: str = "", version: str = "1.1") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/{version}\r\nHost: g\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self.send(head.encode() + data)

    def get(self, path: str, method: str = "GET") -> None:
        self.send(f"{method} {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())

    async def read_head(self) -> tuple[int, dict[str, str]]:
        status = int((await self.reader.readuntil(b"\r\n")).split()[1])
        headers = {}
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    async def read_chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, head: bool = False) -> Answered:
        async with asyncio.timeout(deadline_seconds(60)):
            status, headers = await self.read_head()
            if head or status == 100:
                return Answered(status, headers, b"", complete=True)
            body = b""
            complete = True
            if headers.get("transfer-encoding") == "chunked":
                try:
                    while chunk := await self.read_chunk():
                        body += chunk
                except asyncio.IncompleteReadError:
                    complete = False
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
            return Answered(status, headers, body, complete)

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Site:
    """A gateway and its engines."""

    gateway: Gateway
    engines: dict[str, Engine]
    clients: list[Client] = field(default_factory=list)
    born: set[str] = field(default_factory=set)
    """Series of counters that were there from the start."""

    def counters(self) -> set[str]:
        """Series of all counters, without their values."""
        lines = self.gateway.metrics.render(gauges(self.gateway)).decode().splitlines()
        return {series for series, _, _ in (line.rpartition(" ") for line in lines) if "_total{" in series}

    def born_late(self) -> list[str]:
        """Counters that came with their first count; but what a client or an engine makes up cannot be known."""
        made_up = re.compile(r'requests_total{.*reason=""|watch_restarts_total{.*"status_')
        return [series for series in self.counters() - self.born if not made_up.search(series)]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        self.clients.append(client)
        return client

    async def post(self, body: object, path: str = "/v1/completions", headers: str = "") -> Answered:
        client = await self.connect()
        client.post(body, path, headers)
        return await client.answer()

    async def get(self, path: str) -> Answered:
        client = await self.connect()
        client.get(path)
        return await client.answer()

    async def page(self) -> str:
        """Its metrics, from the port for the cluster."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.inside_port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: g\r\n\r\n")
        async with asyncio.timeout(deadline_seconds(60)):
            answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()

    async def metric(self, series: str) -> float:
        """Sum of the samples of `name` that have all labels of `name{label="value",...}`."""
        name, _, labels = series.rstrip("}").partition("{")
        wanted = labels.split(",") if labels else []
        text = await self.page()
        return sum(
            float(each.rsplit(" ", 1)[1])
            for each in text.splitlines()
            if each.startswith((name + "{", name + " ")) and all(label in each for label in wanted)
        )


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until `condition` holds."""
    async with asyncio.timeout(deadline_seconds(seconds)):
        while not condition():  # noqa: ASYNC110  (any condition)
            await asyncio.sleep(0.005)


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def make_site() -> AsyncIterator[MakeSite]:
    sites: list[Site] = []
    started: list[Engine] = []

    async def make(
        *engines: Engine,
        limits: GatewayLimits | None = None,
        grace_seconds: float = 5.0,
        slo_seconds: tuple[float | None, float | None] = (None, None),
        config: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Site:
        made = GatewayConfig(
            cluster="c", served_name="m", model="org/m", limits=limits or GatewayLimits(),
            shutdown_grace_seconds=grace_seconds, slo_ttft_seconds=slo_seconds[0], slo_tpot_seconds=slo_seconds[1],
            **(config or {}),
        )  # fmt: skip
        merged: dict[str, Any] = {"host": "127.0.0.1", "prewarm": False, "lame_duck_seconds": 0.0, **settings}
        for engine in engines:  # once the configuration is known to be right
            started.append(engine)
            await engine.start()
        gateway = Gateway(
            Settings(
                config=made,
                port=0,
                static_workers=tuple(engine.record() for engine in engines) or (_NOBODY,),
                **merged,
            ),
            asyncio.get_running_loop(),
        )
        await gateway.start()
        if not engines:
            gateway.registry.replace(())
        site = Site(gateway, {engine.name: engine for engine in engines})
        site.born = site.counters()
        sites.append(site)
        return site

    yield make
    for site in sites:
        for client in site.clients:
            client.close()
        with contextlib.suppress(asyncio.CancelledError):
            await site.gateway.stop()
    # Also those that a test has put beside them: a server that is left open holds up the end of the loop.
    beside = [engine for site in sites for engine in site.engines.values() if engine not in started]
    for engine in (*started, *beside):
        await engine.stop()
    assert [site.born_late() for site in sites] == [[]] * len(sites), (
        "known_labels.py: `rate()` misses their first count"
    )


COARSE_SECONDS = 0.016


class CoarseClock(uvloop.Loop):
    """uvloop with a clock that ticks less often: its own one has whole milliseconds, so that on a quick machine a whole
    request takes none. Here most do, on every machine."""

    def time(self) -> float:
        return super().time() // COARSE_SECONDS * COARSE_SECONDS


_NOBODY = WorkerRecord(name="nobody", role=Role.MIXED, host="127.0.0.1", port=1)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on."""
    return {"uvloop": CoarseClock}
