"""How often the agents of the workers are asked."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Site

from fulcrum.api.gateway import LoadsReport
from fulcrum.api.names import Role
from fulcrum.gateway.workers.load_poll import TOLD_SECONDS, period_seconds


@pytest.mark.parametrize(
    ("workers", "alone", "seconds"), [(8, True, 1.0), (8, False, 0.25), (100, False, 0.5), (1000, False, 1.0)]
)
def test_reports_are_newer_where_other_gateways_send_requests_too(workers: int, alone: bool, seconds: float) -> None:
    assert period_seconds(workers, alone=alone) == seconds


async def told_loads(site: Site) -> LoadsReport:
    async with aiohttp.ClientSession() as session:
        page = await session.get(f"http://127.0.0.1:{site.gateway.inside_port}/loads")
        return msgspec.json.decode(await page.read(), type=LoadsReport)


async def test_what_agents_said_is_told_for_a_few_seconds(make_site: MakeSite) -> None:
    agent = await Agent(report()).start()
    site = await make_site(Engine("m", Role.MIXED, facts={"agent_port": agent.port}))
    poller = site.gateway.poller
    await poller.poll()
    told = poller.report()
    poller.polled_at -= TOLD_SECONDS + 1.0
    late = poller.report()
    await agent.stop()
    assert told.loads.keys() == {"m"}
    assert 0 <= told.age_seconds <= TOLD_SECONDS
    assert late == LoadsReport(age_seconds=TOLD_SECONDS, loads={}), "the poll hangs: unknown"


@pytest.mark.parametrize("page", [b'{"x":' + b"[" * 5000, b"", b"[]", b"\xff"])
async def test_one_agents_page_keeps_no_other_from_being_read(make_site: MakeSite, page: bytes) -> None:
    agents = {"bad": await Agent(page).start(), "good": await Agent(report()).start()}
    engines = [Engine(name, Role.MIXED, facts={"agent_port": agent.port}) for name, agent in agents.items()]
    site = await make_site(*engines)
    await site.gateway.poller.poll()
    known = {worker.name: worker.report is not None for worker in site.gateway.registry.workers}
    assert known == {"bad": False, "good": True}
    told = await told_loads(site)
    assert told.loads.keys() == {"good"}
    assert msgspec.json.encode(told.loads["good"]) == msgspec.json.encode(site.gateway.registry.workers[1].report)
    for agent in agents.values():
        await agent.stop()
