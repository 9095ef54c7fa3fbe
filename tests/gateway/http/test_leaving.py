"""Clients that take all places, stop sending, or leave: the others go on, and no engine works for one that left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.gateway.conftest import Client, Engine, MakeSite, Seen, Site, eventually
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayLimits
from fulcrum.api.names import Role
from fulcrum.gateway.http import internal_server

BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
Connect = Callable[[], Awaitable[Client]]


def held(go_on: asyncio.Event) -> Engine:
    """An engine that answers when it is told to."""

    async def wait(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await go_on.wait()
        return False

    return Engine("m", Role.MIXED, behave=wait)


async def say_nothing(client: Client) -> None:
    """An idle client."""


async def begin_a_head(client: Client) -> None:
    client.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nx-y: ")


async def begin_a_second_head(client: Client) -> None:
    client.get("/health")
    client.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nx-y: ")
    assert (await client.answer()).status == 200


async def was_served(client: Client) -> None:
    client.get("/health")
    assert (await client.answer()).status == 200


async def inside(site: Site, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
    async with asyncio.timeout(deadline_seconds(60)):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


@pytest.mark.parametrize("behave", [say_nothing, begin_a_head, begin_a_second_head, was_served])
async def test_idle_clients_starve_neither_probes_nor_other_clients(
    make_site: MakeSite, behave: Callable[[Client], Awaitable[None]]
) -> None:
    site = await make_site(Engine("m", Role.MIXED), max_connections=8)
    hogs = [await site.connect() for _ in range(8)]
    for hog in hogs:
        await behave(hog)
    for number in range(20):
        assert (await site.post(BODY)).status == 200
        assert await inside(site, "/health") == await inside(site, "/ready") == 200
        hogs.append(await site.connect())
        await behave(hogs[-1])
        assert (await site.get("/health")).status == 200, number
    assert len(site.gateway.connections) <= 9


async def test_the_place_that_is_taken_is_the_one_idle_for_longest(make_site: MakeSite) -> None:
    go_on = asyncio.Event()
    site = await make_site(held(go_on), max_connections=3)
    busy, oldest, served = [await site.connect() for _ in range(3)]
    busy.post(BODY)
    await was_served(served)
    await was_served(oldest)
    await was_served(served)
    await eventually(lambda: len(site.engines["m"].seen) == 1)
    await was_served(await site.connect())
    assert await oldest.reader.read() == b""
    await was_served(served)
    go_on.set()
    assert (await busy.answer()).status == 200


async def test_all_bytes_of_requests_that_are_not_begun_count(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.app._ARRIVING_BYTES", 100_000)
    site = await make_site(Engine("m", Role.MIXED), limits=GatewayLimits(max_header_bytes=40_000))
    honest = await site.connect()
    honest.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n")
    greedy = [await site.connect() for _ in range(6)]
    for number, client in enumerate(greedy):
        if number % 2:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 60000\r\n\r\n" + b"x" * 30_000)
        else:
            client.send(b"GET / HTTP/1.1\r\nHost: g\r\n")
            for _ in range(30):
                client.send(b"x-y: " + b"y" * 1000 + b"\r\n")
                await asyncio.sleep(0)
    await eventually(lambda: site.gateway.metrics.requests["", 503, "Overloaded", "default"] > 0)
    assert site.gateway.bodies.total_bytes <= 100_000
    honest.send(b'Content-Length: 28\r\n\r\n{"prompt":"x","max_tokens":3')
    await asyncio.sleep(0)
    honest.send(b"}")
    honest.close()
    client = await site.connect()
    client.post(BODY)
    assert (await client.answer()).status == 200


async def test_whole_requests_that_wait_behind_another_one_count(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.app._ARRIVING_BYTES", 100_000)
    go_on = asyncio.Event()
    site = await make_site(held(go_on))
    budget = site.gateway.bodies
    large = {**BODY, "prompt": "x" * 20_000}
    clients = [await site.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        client.post(BODY)
        await eventually(lambda seen=number + 1: len(site.engines["m"].seen) == seen)  # type: ignore[misc]
    clients[0].post(large)
    await eventually(lambda: budget.total_bytes > 20_000)
    for client in clients[1:]:
        client.send(b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n" * 100)
    await eventually(lambda: len(budget) > 1 and len(site.gateway.places.unread) == len(clients))
    assert budget.total_bytes <= 100_000
    go_on.set()
    answers = [(await client.answer()).status for client in clients for _ in range(2)]
    assert answers.count(503) == 2, "three times 100 requests are too many: two clients give up what waits"
    await eventually(lambda: budget.total_bytes == 0)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_stops_sending_gets_its_answer(make_site: MakeSite, version: str, stream: bool) -> None:
    go_on = asyncio.Event()
    site = await make_site(held(go_on))
    client = await site.connect()
    client.post({**BODY, "stream": stream}, version=version)
    client.writer.write_eof()
    await eventually(lambda: len(site.engines["m"].seen) == 1)
    await asyncio.sleep(0.6)  # two looks for the client
    go_on.set()
    answer = await client.answer()
    while answer.status == 100:
        answer = await client.answer()
    assert (answer.status, answer.complete) == (200, True)
    async with asyncio.timeout(deadline_seconds(60)):
        assert await client.reader.read() == b""


@pytest.mark.parametrize("pipelined", [False, True], ids=["alone", "with a second request behind it"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_no_engine_works_for_a_client_that_left(make_site: MakeSite, how: str, pipelined: bool) -> None:
    site = await make_site(held(asyncio.Event()))
    client = await site.connect()
    client.post(BODY)
    await eventually(lambda: len(site.engines["m"].seen) == 1)
    if pipelined:
        client.post(BODY)
        await asyncio.sleep(0.05)
    if how == "close":
        client.writer.close()
    else:
        client.close()
    await eventually(lambda: site.engines["m"].gone == 1)
    await eventually(lambda: not site.gateway.connections)
    assert len(site.engines["m"].seen) == 1


async def test_the_internal_port_has_places_for_probes(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_server, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(internal_server, "MOST_READERS", 4)
    site = await make_site(Engine("m", Role.MIXED))
    silent = [await asyncio.open_connection("127.0.0.1", site.gateway.inside_port) for _ in range(40)]
    for _ in range(10):
        assert await inside(site, "/health") == await inside(site, "/ready") == 200
        assert await inside(site, "/metrics") == 200
    assert len(site.gateway._inside._writers) <= 8
    for _, writer in silent:
        writer.close()


async def test_a_gateway_that_shuts_down_is_alive_and_not_ready(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED), lame_duck_seconds=60.0)
    stopping = asyncio.ensure_future(site.gateway.stop())
    await eventually(lambda: site.gateway.closing)
    assert (await inside(site, "/health"), await inside(site, "/ready")) == (200, 503)
    stopping.cancel()
    site.gateway.settings = replace(site.gateway.settings, lame_duck_seconds=0.0)


async def test_a_body_of_http_1_0_whose_end_is_unknown_ends_the_connection(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    client = await site.connect()
    client.send(
        b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1d\r\n" + b'{"prompt":"x","max_tokens":3}' + b"\r\n0\r\n\r\n"
    )
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    async with asyncio.timeout(deadline_seconds(60)):
        assert await client.reader.read() == b""


@pytest.mark.parametrize(
    "path", ["/v1/models/org%2Fm", "/v1/models/org/m", "/v1%2Fmodels/org%2fm", "/%76%31/models/org/m"]
)
async def test_a_path_is_decoded_once(make_site: MakeSite, path: str) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    site.gateway._routes._config = site.gateway.settings.config.__class__(cluster="c", served_name="org/m", model="m")
    assert (await site.get(path)).status == 200
    assert (await site.get(path.replace("%", "%25"))).status == (404 if "%" in path else 200)
