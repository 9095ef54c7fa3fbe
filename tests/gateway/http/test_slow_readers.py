"""Clients that do not read: each is cut in time, those who hold most first, and nobody who keeps up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Client, Engine, MakeSite, Seen, Site, eventually
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.gateway.http.budget import Budget
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.slow_readers import SlowReaders

EVENTS = 4000
BODY = {"model": "m", "prompt": "x", "max_tokens": 3}


@dataclass(eq=False)
class Reader:
    unsent: int
    cut: bool = False

    def unsent_bytes(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.cut = True


def test_patience_is_for_progress() -> None:
    readers = SlowReaders(stall_seconds=10, budget_bytes=10**9)
    still, dripping, slow = (Reader(1_000_000) for _ in range(3))
    for reader in (still, dripping, slow):
        readers.add(reader, 0.0)
    for second in range(1, 60):
        dripping.unsent -= 1
        slow.unsent -= 16_384
        readers.sweep(float(second), ResponseBudget())
        assert (still.cut, dripping.cut, slow.cut) == (second > 10, second > 10, False)
    readers.remove(slow)
    assert (len(readers), readers.cut) == (0, {"stalled": 2, "budget": 0})


def test_over_the_budget_who_holds_most_is_cut() -> None:
    readers = SlowReaders(stall_seconds=10, budget_bytes=1_000)
    small = [Reader(10) for _ in range(20)]
    large = [Reader(400), Reader(300)]
    for reader in (*small, *large):
        readers.add(reader, 0.0)
    assert not any(reader.cut for reader in (*small, *large))
    small[0].unsent = 150
    readers.sweep(1.0, ResponseBudget())
    assert [reader.cut for reader in large] == [True, False]
    assert not any(reader.cut for reader in small)
    assert readers.cut["budget"] == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 500)), max_size=60))
def test_a_budget_never_counts_wrongly(steps: list[tuple[int, int]]) -> None:
    budget: Budget[int] = Budget(1_000)
    held: dict[int, int] = {}
    for holder, held_bytes in steps:
        held[holder] = held_bytes
        victims = budget.hold(holder, held_bytes)
        assert bool(victims) == (sum(held.values()) > 1_000)
        for victim in victims:
            assert all(held[victim] >= held[other] for other in held if other not in victims)
            budget.release(victim)
        for victim in victims:
            del held[victim]
        assert budget.total_bytes == sum(held.values()) <= 1_000
        assert len(budget) == len(held)


async def flood(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    if seen.leg == "prefill" or not seen.body.get("stream"):
        return False
    await engine.head(writer)
    for _ in range(EVENTS):
        await engine.event(writer, json.dumps({"choices": [{"index": 0, "text": "x" * 1000}]}))
    await engine.event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def slow_client(site: Site, receive_bytes: int = 4096) -> Client:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", site.gateway.port))
    client = Client(*await asyncio.open_connection(sock=raw, limit=1024))
    site.clients.append(client)
    return client


@pytest.mark.parametrize("drips", [False, True])
async def test_a_stream_that_is_not_read_leaves_the_engine(make_site: MakeSite, drips: bool) -> None:
    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=flood))
    site.gateway.slow_readers = SlowReaders(stall_seconds=3.0)
    slow, quick = await slow_client(site), await site.connect()
    for client in (slow, quick):
        client.post({**BODY, "stream": True})
    received = 0
    await quick.read_head()
    while chunk := await quick.read_chunk():
        received += len(chunk)
    assert received > EVENTS * 1000
    await eventually(lambda: len(site.gateway.slow_readers) == 1)
    engine = site.engines["d"]
    while site.gateway.slow_readers.cut["stalled"] == 0:
        if drips:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await slow.reader.readexactly(1)
        await asyncio.sleep(0.02)
        assert (await site.post(BODY)).status == 200
    await eventually(lambda: sum(worker.in_flight for worker in site.gateway.registry.workers) == 0)
    assert len(engine.handlers) <= 2
    assert site.gateway.slow_readers.cut == {"stalled": 1, "budget": 0}
    assert len(site.gateway.slow_readers) == 0
    assert await site.metric('fulcrum_gateway_slow_readers_cut_total{cause="stalled"}') == 1


async def test_pipelined_answers_wait_for_the_client(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    client = await slow_client(site)
    client.send(b"GET /openapi.json HTTP/1.1\r\nHost: g\r\n\r\n" * 200)
    await eventually(lambda: len(site.gateway.slow_readers) == 1)
    (connection,) = site.gateway.connections
    assert connection.unsent_bytes() < 256 * 1024
    for _ in range(200):
        assert (await client.answer()).status == 200
    await eventually(lambda: len(site.gateway.slow_readers) == 0)
    assert connection.unsent_bytes() == 0
    client.get("/health")
    assert (await client.answer()).status == 200


async def test_an_answer_that_still_leaves_survives_shutdown(make_site: MakeSite) -> None:
    async def large(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 200, {"choices": [{"text": "x" * 5_000_000}]})
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=large), grace_seconds=60.0)
    client = await slow_client(site)
    client.post(BODY)
    await eventually(lambda: len(site.gateway.slow_readers) == 1)
    stopping = asyncio.ensure_future(site.gateway.stop())
    answer = await client.answer()
    assert len(answer.body) > 5_000_000
    await asyncio.wait_for(stopping, deadline_seconds(60))
