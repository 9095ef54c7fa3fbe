"""Streams that wait long for their first token: a comment keeps balancers from cutting them."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually

from fulcrum.api.names import Role

BODY = {"model": "m", "prompt": "x", "max_tokens": 3, "stream": True}


def late(go_on: asyncio.Event, status: int = 200) -> Engine:
    async def wait(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await go_on.wait()
        if status == 200:
            return False
        await engine.send(writer, status, {"error": {"message": "no", "code": status}})
        return True

    return Engine("m", Role.MIXED, behave=wait)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_that_waits_is_not_silent_and_then_is_the_same(make_site: MakeSite, version: str) -> None:
    go_on = asyncio.Event()
    site = await make_site(late(go_on), config={"heartbeat_seconds": 0.05})
    client = await site.connect()
    client.post(BODY, version=version)
    status, headers = await client.read_head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    read = b""
    while read.count(b": waiting\n\n") < 3:
        read += await client.reader.read(100)
    go_on.set()
    while b"[DONE]" not in read:
        read += await client.reader.read(100)
    assert read.rindex(b": waiting") < read.index(b"data: ")
    assert read.count(b"data: {") == 3
    await eventually(lambda: site.gateway.metrics.requests["/v1/completions", 200, "", "default"] == 1)


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_after_a_heartbeat_is_an_event_and_counts_as_what_it_is(
    make_site: MakeSite, status: int
) -> None:
    go_on = asyncio.Event()
    site = await make_site(late(go_on, status), config={"heartbeat_seconds": 0.05})
    client = await site.connect()
    client.post(BODY)
    await client.read_head()
    assert await client.read_chunk() == b": waiting\n\n"
    go_on.set()
    read = await client.reader.read()
    assert b'data: {"error"' in read
    assert not read.endswith(b"0\r\n\r\n"), "the stream has no end"
    assert await site.metric('fulcrum_gateway_requests_total{code="200"') == 0
    assert await site.metric("fulcrum_gateway_requests_total") == 1


async def test_a_client_that_leaves_before_its_first_token_is_left_alone(make_site: MakeSite) -> None:
    site = await make_site(late(asyncio.Event()), config={"heartbeat_seconds": 0.02})
    client = await site.connect()
    client.post(BODY)
    await client.read_head()
    client.close()
    await eventually(lambda: site.engines["m"].gone == 1)


async def test_an_answer_that_comes_as_one_has_no_heartbeat(make_site: MakeSite) -> None:
    go_on = asyncio.Event()
    site = await make_site(late(go_on), config={"heartbeat_seconds": 0.02})
    client = await site.connect()
    client.post({**BODY, "stream": False})
    await eventually(lambda: len(site.engines["m"].seen) == 1)
    await asyncio.sleep(0.1)
    go_on.set()
    answer = await client.answer()
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


async def test_an_error_of_the_gateway_after_a_heartbeat_says_when_to_try_again(make_site: MakeSite) -> None:
    async def lost(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.2)
        writer.transport.abort()
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=lost), config={"heartbeat_seconds": 0.02})
    answer = await site.post(BODY)
    assert b": waiting\n\n" in answer.body
    event = json.loads(answer.body.partition(b"data: ")[2])
    assert event["error"]["retry_after_seconds"] >= 1
