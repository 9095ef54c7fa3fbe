"""Agents over real connections: what they say, and every way in which they say nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from tests.machine import deadline_seconds

from fulcrum.api.batch import BatchCounts
from fulcrum.api.gateway import FailingPair, LoadsReport, PairsReport
from fulcrum.api.names import Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport, RoleRequest
from fulcrum.telemetry import Agents

PATIENT = 60.0
"""Seconds: a busy machine is no silent agent."""
REPORT = LoadReport(role=Role.DECODE, role_epoch=4, ready=True, draining=False, running=0, waiting=2)


BATCHES = BatchCounts(waiting=1, running=2, requests=40, completed=20, failed=3)
PAIRS = PairsReport(failing=(FailingPair(prefill="a", decode="b", failures=2, seconds=7.5, decode_works=1),))
LOADS = LoadsReport(age_seconds=0.5, loads={"a": REPORT})


class FakeAgent:
    def __init__(self) -> None:
        self.asked: list[RoleRequest] = []
        self.authorizations: list[str | None] = []
        self.answer = "report"
        self.pod_name = ""
        self.connections: set[object] = set()
        self.port = 0
        self.runner: web.AppRunner | None = None

    @property
    def address(self) -> AgentAddress:
        return AgentAddress("127.0.0.1", self.port)

    async def load(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        if self.answer == "slow":
            await asyncio.sleep(deadline_seconds(600))
        if self.answer == "error":
            return web.Response(status=500)
        body = b"{" if self.answer == "garbage" else msgspec.json.encode(REPORT)
        headers = {"x-fulcrum-pod": self.pod_name} if self.pod_name else None
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def pairs(self, _: web.Request) -> web.Response:
        body = b"[]" if self.answer == "garbage" else msgspec.json.encode(PAIRS)
        return web.Response(body=body, status=404 if self.answer == "error" else 200)

    async def loads(self, _: web.Request) -> web.Response:
        age_seconds = -1.0 if self.answer == "early" else LOADS.age_seconds
        body = msgspec.json.encode(LoadsReport(age_seconds=age_seconds, loads=LOADS.loads))
        if self.answer == "garbage":
            body = b'{"ageSeconds": 1, "loads": ' + b'{"a":' * 5000
        return web.Response(body=body, status=404 if self.answer == "error" else 200)

    async def progress(self, _: web.Request) -> web.Response:
        body = b" " * 5000 + b"{}" if self.answer == "large" else msgspec.json.encode(BATCHES)
        return web.Response(body=b"[]" if self.answer == "garbage" else body)

    async def role(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=RoleRequest)
        self.asked.append(asked)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.answer == "refused":
            return web.Response(status=401)
        return web.Response(status=409 if asked.role_epoch < 4 else 200)


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    app = web.Application()
    app.add_routes([web.get("/load", agent.load), web.post("/role", agent.role), web.get("/kv-pairs", agent.pairs)])
    app.add_routes([web.get("/progress", agent.progress), web.get("/loads", agent.loads)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    agent.port = runner.addresses[0][1]
    agent.runner = runner
    yield agent
    await runner.cleanup()


async def test_reports_come_by_worker_name(agent: FakeAgent) -> None:
    async with Agents(deadline_seconds=PATIENT) as agents:
        assert await agents.loads({"a": agent.address}) == {"a": REPORT}
        assert await agents.loads({}) == {}


async def test_what_canaries_found_comes_from_the_gateways_that_answer(agent: FakeAgent) -> None:
    async with Agents(gateway_port=agent.port, deadline_seconds=PATIENT) as agents:
        assert await agents.pairs({"one": "127.0.0.1", "refused": "127.99.99.99"}) == (PAIRS,)
        for answer in ("error", "garbage"):
            agent.answer = answer
            assert await agents.pairs({"one": "127.0.0.1"}) == ()


async def test_the_first_gateway_that_answers_tells_what_it_heard_of_workers(agent: FakeAgent) -> None:
    async with Agents(gateway_port=agent.port, deadline_seconds=PATIENT) as agents:
        assert await agents.heard_loads({"refused": "127.99.99.99", "one": "127.0.0.1"}) == LOADS
        assert await agents.heard_loads({}) is None
        # "error": one of an older release has no such page; "early": of a time to come, which would be fresh for ever
        for answer in ("error", "garbage", "early"):
            agent.answer = answer
            assert await agents.heard_loads({"one": "127.0.0.1"}) is None


async def test_a_batch_pod_says_how_far_its_batches_are(agent: FakeAgent) -> None:
    async with Agents(batch_port=agent.port, deadline_seconds=PATIENT) as agents:
        assert await agents.batches("127.0.0.1") == BATCHES
        assert await agents.batches("127.99.99.99") is None
        for answer in ("garbage", "large"):
            agent.answer = answer
            assert await agents.batches("127.0.0.1") is None


@pytest.mark.parametrize("answer", ["slow", "error", "garbage"])
async def test_what_is_no_report_is_unknown_within_the_deadline(agent: FakeAgent, answer: str) -> None:
    agent.answer = answer
    async with Agents(deadline_seconds=0.2) as agents:
        began = time.monotonic()
        loads = await agents.loads({"a": agent.address, "refused": AgentAddress("127.99.99.99", agent.port)})
        assert loads == {"a": None, "refused": None}
        assert time.monotonic() - began < deadline_seconds(60)  # a tenth of what it would have waited for


async def test_a_role_is_told(agent: FakeAgent) -> None:
    async with Agents(deadline_seconds=PATIENT) as agents:
        assert await agents.tell_role(agent.address, Role.PREFILL, 5)
        assert await agents.tell_role(agent.address, Role.PREFILL, 1)  # it knows a newer one
        assert not await agents.tell_role(AgentAddress("127.99.99.99", agent.port), Role.PREFILL, 5)
    assert agent.asked[0] == RoleRequest(role=Role.PREFILL, role_epoch=5)


async def test_the_token_goes_to_agents_and_not_into_the_log(
    agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with Agents(deadline_seconds=PATIENT) as agents:
        assert await agents.tell_role(agent.address, Role.PREFILL, 5, token="abc")
        assert await agents.tell_role(agent.address, Role.PREFILL, 5)
        agent.answer = "refused"
        assert not await agents.tell_role(agent.address, Role.PREFILL, 5, token="abc")
    assert agent.authorizations == ["Bearer abc", None, "Bearer abc"]
    assert "role_refused" in caplog.text
    assert "abc" not in caplog.text


async def test_an_answer_of_another_pod_is_unknown(agent: FakeAgent) -> None:
    agent.pod_name = "a"
    async with Agents(deadline_seconds=PATIENT) as agents:
        assert await agents.loads({"a": agent.address}) == {"a": REPORT}
        assert await agents.loads({"b": agent.address}) == {"b": None}


async def test_connections_are_kept(agent: FakeAgent) -> None:
    async with Agents(deadline_seconds=PATIENT) as agents:
        for _ in range(5):
            assert await agents.loads({"a": agent.address}) == {"a": REPORT}
    assert len(agent.connections) == 1


async def test_a_thousand_workers_are_asked_in_turns(agent: FakeAgent) -> None:
    assert agent.runner is not None
    await web.TCPSite(agent.runner, "0.0.0.0", 0).start()
    port = agent.runner.addresses[-1][1]
    hosts = (f"127.0.{number // 250}.{number % 250 + 1}" for number in range(1000))
    workers = {f"w{number}": AgentAddress(host, port) for number, host in enumerate(hosts)}
    async with Agents(deadline_seconds=PATIENT) as agents:
        for _ in range(2):
            loads = await agents.loads(workers)
            assert all(report == REPORT for report in loads.values())
    assert len(agent.connections) == 1000


async def test_many_dead_workers_do_not_hide_the_living(agent: FakeAgent) -> None:
    agent.answer = "report"
    dead = {f"dead{number}": AgentAddress(f"127.99.0.{number}", agent.port) for number in range(1, 200)}
    async with Agents(deadline_seconds=PATIENT, at_once=8) as agents:
        loads = await agents.loads({**dead, "a": agent.address})
    assert loads["a"] == REPORT


async def test_an_address_that_is_none_is_unknown_and_the_others_are_heard(agent: FakeAgent) -> None:
    workers = {"a": agent.address} | {
        f"odd{number}": AgentAddress(host, 8001) for number, host in enumerate(["[", "a b", "fe80::%", "x:y:z", ""])
    }
    async with Agents(deadline_seconds=PATIENT) as agents:
        loads = await agents.loads(workers)
        assert await agents.pairs({"g": "["}) == ()
    assert {name: report for name, report in loads.items() if report is not None} == {"a": REPORT}
