"""Gateways tell each other what they sent where; what happens to such a message changes nothing for requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually
from tests.gateway.workers.test_watch import ApiServer, gateway_pod, make_pod, pod, start_gateway, status_of
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.names import PORT_ENGINE, PORT_GATEWAY_INSIDE, Role

TOKEN = "cluster-token"
BODY: dict[str, Any] = {"model": "m", "max_tokens": 3}


def address(number: int) -> str:
    """One that no other test process uses."""
    return f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}.{number}"


def conversation(number: int, turns: int) -> str:
    return "".join(f"{number} {turn} " * 400 for turn in range(turns))


async def answer(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    """Count four characters a token, or the gateways would learn that prompts are short."""
    usage = {"prompt_tokens": len(seen.body["prompt"]) // 4, "completion_tokens": 3}
    await engine.whole(seen, writer, usage=usage)
    return True


async def counted(host: str, outcome: str) -> float:
    """Messages with this outcome, as the gateway at `host` counts them."""
    reader, writer = await asyncio.open_connection(host, PORT_GATEWAY_INSIDE)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    lines = [line for line in page.splitlines() if line.startswith("fulcrum_gateway_prefix_batches_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'outcome="{outcome}"' in line)


async def reaches(host: str, outcome: str, count: float) -> None:
    async with asyncio.timeout(deadline_seconds(60)):
        while await counted(host, outcome) < count:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.05)


@pytest.fixture
async def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Engine]]:
    """Two mixed workers and an API server that has their Pods.

    They have no agents: engines that answer at once would be learned to compute prompts in no time.
    """
    server = ApiServer(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    client = await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        stack.push_async_callback(client.close)
        engines = [
            Engine(f"w{number}", Role.MIXED, behave=answer, host=address(10 + number), port=PORT_ENGINE)
            for number in (0, 1)
        ]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
            await make_pod(client, pod(engine.name, role="mixed", podIP=engine.host))
        for number in range(3):
            await make_pod(client, gateway_pod(f"g{number}", podIP=address(20 + number)))
        yield engines


@pytest.mark.integration
async def test_a_conversation_goes_on_at_its_worker_through_another_gateway(workers: list[Engine]) -> None:
    """Three gateway processes. Without sharing, half of the second turns would go to the other worker."""
    config = GatewayConfig(cluster="c", served_name="m", model="m")
    hosts = [address(20 + number) for number in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        ports = [
            await start_gateway(
                stack, f"g{number}", config, host=hosts[number], inside_port=PORT_GATEWAY_INSIDE, token=TOKEN
            )
            for number in range(3)
        ]

        async def turn(at: int, number: int, turns: int) -> None:
            body = msgspec.json.encode({**BODY, "prompt": conversation(number, turns)})
            assert await status_of(ports[at], "POST", "/v1/completions", body, host=hosts[at]) == 200

        def served_by(number: int, turns: int) -> str:
            prompt = conversation(number, turns)
            (found,) = [engine.name for engine in workers for seen in engine.seen if seen.body.get("prompt") == prompt]
            return found

        for number in range(12):
            await turn(0, number, 1)
            await reaches(hosts[1], "learned", number + 1)
            await reaches(hosts[2], "learned", number + 1)
        for number in range(12):
            await turn(1 + number % 2, number, 2)
        assert {served_by(number, 1) for number in range(12)} == {"w0", "w1"}
        assert [served_by(number, 2) for number in range(12)] == [served_by(number, 1) for number in range(12)]
        assert await counted(hosts[0], "failed") == 0


@pytest.mark.parametrize("token", [TOKEN, "another"])
async def test_gateways_of_one_token_only(make_site: MakeSite, token: str) -> None:
    other = await make_site(Engine("m", Role.MIXED), token=token, inside_port=PORT_GATEWAY_INSIDE, host=address(1))
    site = await make_site(Engine("m", Role.MIXED), token=TOKEN)
    site.gateway.meet(frozenset({address(1)}))
    assert (await site.post({**BODY, "prompt": conversation(1, 1)})).status == 200
    batches = site.gateway.metrics.prefix_batches
    await eventually(lambda: batches.total() > 0)
    same = token == TOKEN
    assert dict(+batches) == {"told" if same else "refused": 1}
    assert other.gateway.metrics.prefix_batches["learned"] == same


async def test_no_text_and_no_hash_without_the_secret_is_sent(make_site: MakeSite) -> None:
    bodies: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()

    peer = await asyncio.start_server(take, address(2), PORT_GATEWAY_INSIDE)
    prompt = conversation(1, 3)
    for token in (TOKEN, "another"):
        site = await make_site(Engine("m", Role.MIXED), token=token)
        site.gateway.meet(frozenset({address(2)}))
        assert (await site.post({**BODY, "prompt": prompt})).status == 200
        count = len(bodies)
        await eventually(lambda count=count: len(bodies) > count)
    peer.close()
    first, second = (msgspec.msgpack.decode(body) for body in bodies)
    assert [name for name, _ in first[0].values()] == [name for name, _ in second[0].values()] == ["m"]
    keys, others = first[1][0][-1], second[1][0][-1]
    assert len(keys) == len(others) > 5
    assert not set(keys) & set(others)
    assert b"1 0 1 0" not in bodies[0]


@pytest.mark.parametrize("peer", ["dead", "slow", "breaks off"])
async def test_a_gateway_that_is_dead_or_slow_changes_nothing_for_requests(make_site: MakeSite, peer: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        if peer == "slow":
            await reader.read()
        writer.transport.abort()

    server = None if peer == "dead" else await asyncio.start_server(serve, address(3), PORT_GATEWAY_INSIDE)
    site: Site = await make_site(Engine("m", Role.MIXED), token=TOKEN)
    site.gateway.meet(frozenset({address(3)}))
    batches = site.gateway.metrics.prefix_batches
    number = 0
    async with asyncio.timeout(deadline_seconds(60)):
        while batches["failed"] < 2 or (peer == "slow" and not batches["skipped"]):
            number += 1
            assert (await site.post({**BODY, "prompt": conversation(number, 1)})).status == 200
            await asyncio.sleep(0.02)
    assert set(+batches) <= {"failed", "skipped"}
    assert len(asyncio.all_tasks()) < 30
    if server is not None:
        server.close()
