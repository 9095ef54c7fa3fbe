from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from _loopback.launch import free_ports
from tests.machine import deadline_seconds

from fulcrum_local.proxy.proxy import ServiceProxy
from fulcrum_local.proxy.splice import Downstream, _Side

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Address = tuple[str, int]
HOST = "127.78.250.9"


def on_uvloop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """The proxy runs on uvloop, whose transports differ from asyncio's in the corners that are tested here."""

    def run() -> None:
        uvloop.run(test())

    run.__name__ = test.__name__
    return run


def echo(mark: bytes = b"") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(mark)
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    return handle


@asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[Address]:
    server = await asyncio.start_server(handler, "127.77.250.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()


@asynccontextmanager
async def forwarding(*endpoints: Address) -> AsyncIterator[tuple[ServiceProxy, Address]]:
    proxy = ServiceProxy(api=None)  # type: ignore[arg-type] # the listeners alone need no API server
    address = (HOST, *free_ports(1, HOST))
    assert await proxy.apply({address: endpoints})
    try:
        yield proxy, address
    finally:
        await proxy.close()


async def talk(address: Address, message: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(message)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), deadline_seconds(60))
    writer.close()
    return answer


@on_uvloop
async def test_bytes_half_close_and_end_pass_through() -> None:
    async with backend(echo()) as endpoint, forwarding(endpoint) as (_, address):
        message = bytes(range(256)) * 40_000  # 10 MB: more than all buffers on the way
        assert await talk(address, message) == message


@on_uvloop
async def test_endpoints_take_turns_and_a_dead_one_is_skipped() -> None:
    dead = ("127.77.250.7", *free_ports(1, "127.77.250.7"))
    async with backend(echo(b"a")) as one, backend(echo(b"b")) as two, forwarding(one, two, dead) as (_, address):
        answers = [await talk(address, b"") for _ in range(6)]
        assert set(answers) == {b"a", b"b"}


@on_uvloop
async def test_new_endpoints_count_at_once_and_old_connections_stay() -> None:
    async with backend(echo(b"a")) as one, backend(echo(b"b")) as two, forwarding(one) as (proxy, address):
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.readexactly(1) == b"a"
        assert await proxy.apply({address: (two,)})
        assert await talk(address, b"") == b"b"
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        assert await proxy.apply({address: ()})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        writer.write(b"even now")
        assert await reader.readexactly(8) == b"even now"
        writer.close()


@on_uvloop
async def test_no_living_endpoint_resets_the_client() -> None:
    async with forwarding(("127.77.250.7", *free_ports(1, "127.77.250.7"))) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), deadline_seconds(60))
        writer.close()


@on_uvloop
async def test_reset_by_the_endpoint_reaches_the_client() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"half an ans")
        await writer.drain()
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with backend(handle) as endpoint, forwarding(endpoint) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        assert await reader.readexactly(11) == b"half an ans"
        writer.write(b"y")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), deadline_seconds(60))
        writer.close()


@on_uvloop
async def test_client_that_goes_away_is_noticed_by_the_endpoint() -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1024):
                pass
        except ConnectionResetError:
            pass
        ended.set()
        writer.close()

    async with backend(handle) as endpoint, forwarding(endpoint) as (_, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), deadline_seconds(60))


async def test_an_endpoint_that_ends_the_connection_at_once_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone before the two connections are joined: the client must not wait for it for ever."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()
        await writer.wait_closed()

    loop = asyncio.get_running_loop()
    connect, (bad, good) = loop.create_connection, free_ports(2, HOST)

    async def connect_and_lose(factory: Callable[[], _Side], host: str, port: int, **options: Any) -> Any:
        transport, side = await connect(factory, host, port, **options)
        if port == bad:
            transport.abort()
            while side.transport is not None:  # noqa: ASYNC110  (any condition)
                await asyncio.sleep(0)
        return transport, side

    monkeypatch.setattr(loop, "create_connection", connect_and_lose)
    live: set[Downstream] = set()
    async with (
        await asyncio.start_server(echo, HOST, bad),
        await asyncio.start_server(echo, HOST, good),
        await loop.create_server(lambda: Downstream(lambda: [(HOST, bad), (HOST, good)], live), HOST, 0) as front,
    ):
        reader, writer = await asyncio.open_connection(HOST, front.sockets[0].getsockname()[1])
        writer.write(b"hello")
        async with asyncio.timeout(deadline_seconds(20)):
            assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
        while live:  # noqa: ASYNC110  (any condition)
            await asyncio.sleep(0)
