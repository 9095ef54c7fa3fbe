"""Whatever comes over the wire, the gateway answers 4xx or closes, and goes on serving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulcrum.api.gateway import GatewayConfig, GatewayLimits
from fulcrum.api.names import Role
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings

from .conftest import Client, Engine, Site

Run = Callable[[Callable[[Site], Coroutine[Any, Any, None]]], None]

DATA = json.dumps({"model": "m", "prompt": "x"}).encode()
VALID = (
    b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(DATA), DATA)
)


@pytest.fixture(scope="module")
def run() -> Any:
    """Runs coroutines against one gateway that lives through all examples."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engines = {"p": Engine("p", Role.PREFILL), "d": Engine("d", Role.DECODE)}

        async def start() -> Gateway:
            for engine in engines.values():
                await engine.start()
            gateway = Gateway(
                Settings(
                    config=GatewayConfig(
                        cluster="c", served_name="m", model="m", limits=GatewayLimits(max_body_bytes=4096)
                    ),
                    host="127.0.0.1", port=0, prewarm=False, lame_duck_seconds=0,
                    static_workers=tuple(engine.record() for engine in engines.values()),
                ),
                asyncio.get_running_loop(),
            )  # fmt: skip
            await gateway.start()
            return gateway

        async def stop() -> None:
            await site.gateway.stop()
            for engine in engines.values():
                await engine.stop()

        site = Site(runner.run(start()), engines)
        yield lambda test: runner.run(test(site))
        runner.run(stop())


async def statuses(site: Site, pieces: list[bytes]) -> list[int]:
    """Status codes of all answers to what is sent, until the gateway closes or nothing more can come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    client = Client(reader, writer)
    for piece in pieces:
        client.send(piece)
        await asyncio.sleep(0)
    seen = []
    try:
        async with asyncio.timeout(0.15):
            while True:
                seen.append((await client.answer()).status)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        pass
    client.close()
    return seen


async def still_serves(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    client = Client(reader, writer)
    client.send(VALID)
    assert (await client.answer()).status == 200
    client.close()


def mutations() -> st.SearchStrategy[bytes]:
    """A valid request with bytes replaced, removed or inserted."""

    def mutate(edits: list[tuple[int, int, bytes]]) -> bytes:
        wire = VALID
        for place, length, insert in edits:
            at = place % (len(wire) + 1)
            wire = wire[:at] + insert + wire[at + length :]
        return wire

    fragments = st.sampled_from(
        [b"\r\n", b"\n", b"\r", b":", b" ", b"\x00", b"chunked", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.0", b"{"]
    )
    edit = st.tuples(st.integers(0, 300), st.integers(0, 5), fragments | st.binary(max_size=5))
    return st.lists(edit, min_size=1, max_size=4).map(mutate)


COMMON = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@COMMON
@given(wire=st.binary(max_size=400) | mutations(), cut=st.integers(0, 400))
def test_malformed_http_is_never_a_5xx(run: Run, wire: bytes, cut: int) -> None:
    async def check(site: Site) -> None:
        seen = await statuses(site, [wire[:cut], wire[cut:]])
        assert all(100 <= status < 500 for status in seen)
        await still_serves(site)

    run(check)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(["m", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["prompt", "messages", "model", "stream", "n", "max_tokens", "echo", "kv_transfer_params"])


@COMMON
@given(body=st.dictionaries(fields, json_values, max_size=6).map(json.dumps).map(str.encode) | st.binary(max_size=100))
def test_malformed_json_is_never_a_5xx(run: Run, body: bytes) -> None:
    async def check(site: Site) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
        client = Client(reader, writer)
        client.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await client.answer()
        assert answer.status == 200 or 400 <= answer.status < 500
        client.send(VALID)
        assert (await client.answer()).status == 200
        client.close()

    run(check)
