"""What reaches the server that a request is passed on to: that request, whole, and nothing that follows it."""

from __future__ import annotations

import asyncio

from tests.gateway.conftest import MakeSite
from tests.machine import deadline_seconds

from fulcrum.api.batch import GatewayBatch
from fulcrum.gateway.http.framing import LAST_CHUNK


async def test_what_follows_the_body_is_dropped(make_site: MakeSite) -> None:
    got = bytearray()
    came, answer, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readuntil(LAST_CHUNK))
        came.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.write_eof()
        got.extend(await reader.read())
        writer.close()
        over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        to = GatewayBatch(class_name="batch", host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        site = await make_site(config={"batch": to})
        client = await site.connect()
        async with asyncio.timeout(deadline_seconds(10)):
            client.send(
                b"POST /v1/batches HTTP/1.1\r\nHost: g\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            )
            await came.wait()
            client.send(b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n")
            await site.page()  # the gateway has read what came before
            answer.set()
            assert (await client.answer()).status == 200
            await over.wait()
    finally:
        server.close()
    assert got.endswith(b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert got.count(LAST_CHUNK) == 1
