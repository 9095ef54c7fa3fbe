"""Whatever answers in place of a Prometheus, an agent or a gateway, the operator stays small and quick."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gzip
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.sources import UNUSED_SECONDS, Sources
from fulcrum.telemetry import Agents, ClusterRef, PrometheusSource, ScrapeSource, Unknown
from fulcrum.telemetry.prometheus_calls import AT_ONCE, PrometheusCalls
from fulcrum.telemetry.turns import Turns

CLUSTER = ClusterRef(namespace="ml", name="chat")
BOMB_BYTES = 256 << 20
MOST_BYTES = 96 << 20
"""Of memory while bombs come from everywhere; they hold 5 GiB."""
AGENTS, GATEWAYS = 16, 3
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


def _headers(*lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", "Content-Type: application/json", *lines, "", "")).encode()


async def _endlessly(writer: asyncio.StreamWriter, part: bytes, pause_seconds: float = 0.0) -> None:
    while True:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause_seconds)


def _bomb(said: bool) -> Write:
    body = gzip.compress(bytes(BOMB_BYTES), 1)
    encoding = ("Content-Encoding: gzip",) if said else ()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(_headers(f"Content-Length: {len(body)}", *encoding) + body)
        await writer.drain()

    return write


def _endless(*lines: str, part: bytes, pause_seconds: float = 0.0) -> Write:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(_headers(*lines))
        await _endlessly(writer, part, pause_seconds)

    return write


async def _never(writer: asyncio.StreamWriter) -> None:
    await _endlessly(writer, b"", 0.1)


async def _slow_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    await _endlessly(writer, b"x", 0.02)


def _nested(writer: asyncio.StreamWriter) -> Awaitable[None]:
    body = b'{"data": {"result": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    writer.write(_headers(f"Content-Length: {len(body)}") + body)
    return writer.drain()


HOSTILE: dict[str, Callable[[], Write]] = {
    "gzip": lambda: _bomb(True),
    "gzip unsaid": lambda: _bomb(False),
    "endless": lambda: _endless(part=b"x" * 65536),
    "endless chunks": lambda: _endless("Transfer-Encoding: chunked", part=b"10000\r\n" + b"[" * 65536 + b"\r\n"),
    "too long": lambda: _endless("Content-Length: 99999999999", part=b" " * 65536),
    "drip": lambda: _endless(part=b"1", pause_seconds=0.02),
    "silent": lambda: _never,
    "slow headers": lambda: _slow_headers,
    "nested": lambda: _nested,
}


@contextlib.asynccontextmanager
async def upstream(write: Write, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Answer every request by `write`; yields the port. Its own tasks are called `upstream`."""
    answering: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await write(writer)
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer), name="upstream")
        answering[task] = writer
        task.add_done_callback(answering.pop)

    listener = socket.create_server((address, port))
    server = await asyncio.start_server(accept, sock=listener)
    try:
        yield listener.getsockname()[1]
    finally:
        # What was accepted takes some turns of the loop until it is known here, and nobody closes what comes later.
        asyncio.get_running_loop().remove_reader(listener)
        for _ in range(10):
            await asyncio.sleep(0)
        server.close()
        tasks = list(answering)
        for task, writer in list(answering.items()):
            task.cancel()
            writer.transport.abort()  # a task that has not begun does not
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_answers_are_unknown_soon_and_take_little_memory(kind: str) -> None:
    async with (
        upstream(HOSTILE[kind]()) as port,
        PrometheusCalls() as calls,
        Agents(gateway_port=port, deadline_seconds=1.0) as agents,
        ScrapeSource(port=port, older_port=None, deadline_seconds=1.0) as scrape,
    ):
        prometheus = PrometheusSource(f"http://127.0.0.1:{port}", deadline_seconds=1.0, calls=calls)
        await calls.client()  # its modules are no answer's memory
        tracemalloc.start()
        began = time.monotonic()
        try:
            traffic, loads, pairs, _ = await asyncio.gather(
                prometheus.traffic(CLUSTER, window_seconds=30, now=1000.0),
                agents.loads({f"w{n}": AgentAddress("127.0.0.1", port) for n in range(AGENTS)}),
                agents.pairs({f"g{n}": "127.0.0.1" for n in range(GATEWAYS)}),
                scrape.scrape(CLUSTER, {f"g{n}": "127.0.0.1" for n in range(GATEWAYS)}, 1000.0),
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        print(f"{kind}: peak {peak >> 20} MiB, {time.monotonic() - began:.1f} s")
        assert isinstance(traffic, Unknown)
        assert set(loads.values()) == {None}
        assert pairs == ()
        assert isinstance(await scrape.traffic(CLUSTER, window_seconds=30, now=1000.0), Unknown)
        assert peak < MOST_BYTES


async def test_edits_of_the_url_leave_nothing_behind() -> None:
    async def no_secret(_: str, __: str) -> None:
        return None

    def spec_of(number: int) -> InferenceClusterSpec:
        document = {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}],
            "metrics": {"prometheus": {"url": f"http://127.0.0.1:{port}/{number}"}},
        }
        return msgspec.convert(document, InferenceClusterSpec)

    now = [0.0]
    async with upstream(_never) as port, Sources(no_secret, clock=lambda: now[0]) as sources:
        threads, tasks = threading.active_count(), len(_tasks())
        for number in range(40):
            now[0] += UNUSED_SECONDS / 4
            source = await sources.of(spec_of(number), "ml")
            assert isinstance(source, PrometheusSource)
            asking = asyncio.create_task(source.traffic(CLUSTER, window_seconds=30, now=1000.0))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert len(sources._prometheus) <= 4
        assert threading.active_count() <= threads + AT_ONCE, "those of the one pool"
        async with asyncio.timeout(deadline_seconds(10)):
            while len(_tasks()) > tasks:  # noqa: ASYNC110 - polls what has no event
                await asyncio.sleep(0.01)


def _tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task.get_name() != "upstream"}


async def test_silent_workers_of_one_cluster_do_not_delay_another() -> None:
    async with upstream(_never) as silent, Agents(deadline_seconds=0.2, at_once=8) as agents:
        many = asyncio.create_task(agents.loads({f"w{n}": AgentAddress("127.0.0.1", silent) for n in range(1_000)}))
        await asyncio.sleep(0)
        await agents.loads({f"v{n}": AgentAddress("127.0.0.1", silent) for n in range(8)})
        assert not many.done(), "the other cluster's eight had their turns among the thousand"
        many.cancel()
        await asyncio.gather(many, return_exceptions=True)


async def test_turns_go_round() -> None:
    turns, order = Turns(1), []

    async def call(caller: str) -> None:
        async with turns.of(caller):
            order.append(caller)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(call(caller)) for caller in ("a", "a", "a", "a", "b", "b", "c")]
    await asyncio.gather(*tasks)
    assert order == ["a", "a", "b", "c", "a", "b", "a"]


async def test_a_call_that_is_given_up_keeps_no_turn() -> None:
    turns = Turns(1)
    async with turns.of("a"):
        waiting = [asyncio.create_task(turns.of("b").__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(deadline_seconds(1)), turns.of("a"):
        pass


async def test_no_redirect_leads_the_operator_elsewhere() -> None:
    """An agent or a gateway of one cluster must not have the operator ask, or tell, one of another cluster."""
    reached: list[bytes] = []

    async def victim(writer: asyncio.StreamWriter) -> None:
        reached.append(b"asked")
        writer.write(_headers("Content-Length: 2") + b"{}")
        await writer.drain()

    async with upstream(victim) as elsewhere:

        async def redirect(writer: asyncio.StreamWriter) -> None:
            location = f"Location: http://127.0.0.1:{elsewhere}/x".encode()
            writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\n" + location + b"\r\n\r\n")
            await writer.drain()

        async with (
            upstream(redirect) as port,
            Agents(gateway_port=port) as agents,
            ScrapeSource(port=port, older_port=None) as scrape,
        ):
            address = AgentAddress("127.0.0.1", port)
            assert await agents.loads({"w": address}) == {"w": None}
            assert await agents.pairs({"g": "127.0.0.1"}) == ()
            assert not await agents.tell_role(address, Role.DECODE, 1, token="t")
            await scrape.scrape(CLUSTER, {"g": "127.0.0.1"}, 1000.0)
    assert reached == []


def test_every_client_session_of_the_operator_decompresses_nothing_and_reads_with_a_limit() -> None:
    root = Path(__file__).parents[2] / "operator" / "fulcrum"
    wrong, sessions, reads = [], 0, 0
    for room in ("telemetry", "controller"):
        for file in (root / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                if ast.unparse(node.func) == "PrometheusConnect":
                    sessions += 1
                    wrong += [file] if "session" not in {k.arg for k in node.keywords} else []
                if not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr == "Session":
                    wrong.append(file)  # the one of prometheus_session is a subclass
                if node.func.attr in ("get", "post") and ast.unparse(node.func.value) in (
                    "self._open",
                    "self._session",
                ):
                    reads += 1
                    wrong += [file] if not any(k.arg == "allow_redirects" for k in node.keywords) else []
                if node.func.attr == "ClientSession":
                    sessions += 1
                    wrong += [file] if not any(k.arg == "auto_decompress" for k in node.keywords) else []
                called = ast.unparse(node.func)
                whole = {"response.read", "response.text", "response.json", "requests.get", "urllib.request.urlopen"}
                wrong += [file] if called in whole else []
    assert sessions >= 3
    assert reads >= 4
    assert wrong == []
