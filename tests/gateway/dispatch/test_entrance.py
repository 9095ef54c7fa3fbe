"""Requests that wait at the gateway: each is served, or gets an answer, and none holds up the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Client, Engine, MakeSite, Seen, Site, eventually

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionPolicy, AdmissionQueue, Degrade, QosClass

BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3}
MakeAgent = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def make_agent() -> AsyncIterator[MakeAgent]:
    agents: list[Agent] = []

    async def make(**changes: Any) -> Agent:
        agents.append(await Agent(report(**changes)).start())
        return agents[-1]

    yield make
    for agent in agents:
        await agent.stop()


class Gate:
    """An engine that answers when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def behave(self, engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await self.open.wait()
        return False


async def busy_site(
    make_site: MakeSite,
    make_agent: MakeAgent,
    gate: Gate,
    *,
    max_wait: str = "10m",
    max_requests: int = 10,
    **more: Any,
) -> tuple[Site, Client]:
    """One worker that takes one request at a time, and has one; the client of that."""
    agent = await make_agent(max_batch=1)
    engine = Engine("m", Role.MIXED, behave=gate.behave, facts={"pool": "x", "agent_port": agent.port})
    headers = more.pop("headers", "")
    queue = AdmissionQueue(max_wait=max_wait, max_requests=max_requests)
    admission = Admission(policy=AdmissionPolicy.THRESHOLD, queue=queue, classes=more.pop("classes", ()))
    site = await make_site(engine, config={"admission": admission, **more.pop("config", {})}, **more)
    await eventually(lambda: site.gateway.registry.workers[0].ranks[0].state.engine.known)
    first = await site.connect()
    first.post(BODY, headers=headers)
    await eventually(lambda: len(engine.seen) == 1)
    return site, first


async def waiting(site: Site, count: int) -> None:
    queue = site.gateway.admission.queue
    assert queue is not None
    await eventually(lambda: len(queue) == count)


async def outcomes(site: Site) -> dict[str, float]:
    found = {
        outcome: await site.metric(f'fulcrum_gateway_queue_outcomes_total{{outcome="{outcome}"}}')
        for outcome in ("served", "expired", "full", "left")
    }
    return {outcome: count for outcome, count in found.items() if count}


async def test_a_request_waits_and_is_served(make_site: MakeSite, make_agent: MakeAgent) -> None:
    gate = Gate()
    site, first = await busy_site(make_site, make_agent, gate)
    second = await site.connect()
    second.post({**BODY, "stream": True})
    await waiting(site, 1)
    assert await site.metric("fulcrum_gateway_queued") == 1
    assert len(site.engines["m"].seen) == 1
    gate.open.set()
    assert [(await client.answer()).status for client in (first, second)] == [200, 200]
    assert await outcomes(site) == {"served": 1}
    assert await site.metric("fulcrum_gateway_queue_wait_seconds_count") == 1
    assert await site.metric("fulcrum_gateway_queued") == 0
    assert await site.metric("fulcrum_gateway_rejected_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_waits_too_long_gets_its_429(make_site: MakeSite, make_agent: MakeAgent, stream: bool) -> None:
    site, _ = await busy_site(make_site, make_agent, Gate(), max_wait="50ms", config={"heartbeat_seconds": 0.01})
    answer = await site.post({**BODY, "stream": stream})
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (429, "QueueFull")
    assert int(answer.headers["retry-after"]) >= 1
    assert await outcomes(site) == {"expired": 1}
    assert await site.metric('fulcrum_gateway_rejected_total{reason="QueueFull"}') == 1


async def test_no_more_wait_than_may(make_site: MakeSite, make_agent: MakeAgent) -> None:
    gate = Gate()
    site, first = await busy_site(make_site, make_agent, gate, max_requests=2)
    clients = [await site.connect() for _ in range(2)]
    for client in clients:
        client.post(BODY)
    await waiting(site, 2)
    assert [(await site.post(BODY)).status for _ in range(20)] == [429] * 20
    assert (await site.get("/v1/models")).status == 200
    gate.open.set()
    assert [(await client.answer()).status for client in (first, *clients)] == [200] * 3
    assert await outcomes(site) == {"full": 20, "served": 2}


async def test_a_client_that_leaves_gives_its_place_back(make_site: MakeSite, make_agent: MakeAgent) -> None:
    gate = Gate()
    site, _ = await busy_site(make_site, make_agent, gate, max_requests=1)
    gone = await site.connect()
    gone.post(BODY)
    await waiting(site, 1)
    gone.close()
    await waiting(site, 0)
    assert await outcomes(site) == {"left": 1}
    stays = await site.connect()
    stays.post(BODY)
    await waiting(site, 1)
    gate.open.set()
    assert (await stays.answer()).status == 200
    assert len(site.engines["m"].seen) == 2
    await eventually(lambda: site.gateway.registry.workers[0].in_flight == 0)


async def test_the_first_worker_serves_those_that_waited_for_it(make_site: MakeSite) -> None:
    queue = AdmissionQueue(max_wait="10m", max_requests=10)
    site = await make_site(config={"admission": Admission(policy=AdmissionPolicy.OFF, queue=queue)})
    clients = [await site.connect() for _ in range(3)]
    for client in clients:
        client.post(BODY)
    await waiting(site, 3)
    engine = site.engines["m"] = Engine("m", Role.MIXED)
    await engine.start()
    site.gateway.registry.replace((engine.record(),))
    assert [(await client.answer()).status for client in clients] == [200] * 3


@pytest.mark.parametrize("grace_seconds", [60.0, 0.0])
async def test_sigterm_loses_none_that_waits(make_site: MakeSite, make_agent: MakeAgent, grace_seconds: float) -> None:
    gate = Gate()
    site, first = await busy_site(make_site, make_agent, gate, grace_seconds=grace_seconds)
    second = await site.connect()
    second.post(BODY)
    await waiting(site, 1)
    stopping = asyncio.create_task(site.gateway.stop())
    await eventually(lambda: site.gateway.closing)
    if grace_seconds:
        gate.open.set()
        assert [(await client.answer()).status for client in (first, second)] == [200, 200]
    else:
        answer = await second.answer()
        assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (503, "ShuttingDown")
    await stopping


async def test_one_key_cannot_fill_the_queue(make_site: MakeSite, make_agent: MakeAgent, tmp_path: Path) -> None:
    for name, weight in (("flood", 1), ("other", 3)):
        (tmp_path / name).write_text(json.dumps({"key": f"secret-{name}", "weight": weight}))
    gate, flood, other = Gate(), "Authorization: Bearer secret-flood\r\n", "Authorization: Bearer secret-other\r\n"
    site, first = await busy_site(
        make_site, make_agent, gate, max_requests=8, config={"api_keys_directory": str(tmp_path)}, headers=flood
    )
    many = [await site.connect() for _ in range(30)]
    for client in many:
        client.post(BODY, headers=flood)
    await waiting(site, 8)
    mine = [await site.connect() for _ in range(6)]
    for client in mine:
        client.post(BODY, headers=other)
    # Of 8 places a weight of 3 of 4 is worth 6.
    queue = site.gateway.admission.queue
    assert queue is not None
    await eventually(lambda: queue.outcomes["default", "full"] == 28)
    gate.open.set()
    assert [(await client.answer()).status for client in (first, *mine)] == [200] * 7
    assert sorted([(await client.answer()).status for client in many]) == [200] * 2 + [429] * 28


async def test_a_class_is_degraded_before_it_is_refused(make_site: MakeSite, make_agent: MakeAgent) -> None:
    gate = Gate()
    classes = (QosClass(name="free", priority=0, degrade=Degrade(max_output_tokens=2)),)
    site, first = await busy_site(make_site, make_agent, gate, classes=classes)
    clients = [await site.connect() for _ in range(2)]
    for client, most in zip(clients, (3, 1), strict=True):
        client.post({**BODY, "max_tokens": most, "min_tokens": most})
    await waiting(site, 2)
    gate.open.set()
    assert "x-fulcrum-degraded" not in (await first.answer()).headers
    answers = [await client.answer() for client in clients]
    assert [answer.headers.get("x-fulcrum-degraded") for answer in answers] == ["max-output-tokens=2", None]
    bodies = sorted((seen.body["max_tokens"], seen.body.get("min_tokens")) for seen in site.engines["m"].seen)
    assert bodies == [(1, 1), (2, 2), (3, None)]
    assert await site.metric('fulcrum_gateway_degraded_total{class="free"}') == 1
