"""The port for the cluster: metrics and pairs, nothing else, and no client can hold it up."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.gateway.conftest import Engine, MakeSite, Site
from tests.machine import deadline_seconds

from fulcrum.api.gateway import PairsReport
from fulcrum.api.names import Role

GOOD = msgspec.msgpack.encode(({0: ("m", "@")}, ((0, 512, 512, False, (7,)),)))
"""A message that names a worker which is not there."""


async def ask(site: Site, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of an answer; the connection must end with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), deadline_seconds(20))
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def test_pages(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    head, body = await ask(site, b"GET /metrics HTTP/1.1\r\nHost: g\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-length: %d" % len(body) in head
    assert b"fulcrum_gateway_workers" in body
    _, body = await ask(site, b"GET /kv-pairs?x=1 HTTP/1.1\r\n\r\n")
    assert msgspec.json.decode(body, type=PairsReport) == PairsReport()
    head, body = await ask(site, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")


async def test_clients_do_not_get_them(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    for path in ("/metrics", "/kv-pairs", "/loads"):
        assert (await site.get(path)).status == 404


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", b"405"),
        (b"\r\n\r\n", b"405"),
    ],
)
async def test_nothing_else(make_site: MakeSite, request_bytes: bytes, status: bytes) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    head, _ = await ask(site, request_bytes)
    assert head.split()[1] == status


async def test_who_says_nothing_or_too_much_is_cut_off(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.http.internal_server._HEAD_SECONDS", 0.1)
    site = await make_site(Engine("m", Role.MIXED))
    assert await ask(site, b"GET /metr") == (b"", b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), deadline_seconds(20))
    writer.transport.abort()


def message(body: bytes = GOOD, *, token: str = "cluster-token", more: bytes = b"") -> bytes:
    head = f"POST /sent-prefixes HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (message(b"{}"), b"400"),
        (message(b"\xff" * 100), b"400"),
        (message(token="cluster-tokem"), b"401"),
        (message(token=""), b"401"),
        (message().replace(b"Authorization", b"X-Other"), b"401"),
        (message().replace(b"Content-Length", b"Transfer-Encoding"), b"411"),
        (b"POST /sent-prefixes HTTP/1.1\r\nauthorization: Bearer cluster-token\r\ncontent-length: -1\r\n\r\n", b"411"),
        (message(more=b"Content-Length: 2000000\r\n"), b"413"),
        (message(more=b"Content-Length: %b\r\n" % (b"9" * 9000)), b"413"),
    ],
)
async def test_messages_that_are_refused_end_the_connection(
    make_site: MakeSite, request_bytes: bytes, status: bytes
) -> None:
    site = await make_site(Engine("m", Role.MIXED), token="cluster-token")
    head, body = await ask(site, request_bytes)
    assert (head.split()[1], body) == (status, b"")


async def test_without_a_token_no_message_is_taken(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    head, _ = await ask(site, message())
    assert head.split()[1] == b"405"


async def test_messages_share_a_connection(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED), token="cluster-token")
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    for number in range(1, 4):
        writer.write(message())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), deadline_seconds(20))
        assert head.startswith(b"HTTP/1.1 204 ")
        assert await site.metric('fulcrum_gateway_prefix_batches_total{outcome="learned"}') == number
    writer.transport.abort()
