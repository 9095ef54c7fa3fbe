"""How often the agents of the workers are asked."""

from __future__ import annotations

import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite

from fulcrum.api.names import Role
from fulcrum.gateway.workers.load_poll import period_seconds


@pytest.mark.parametrize(
    ("workers", "alone", "seconds"), [(8, True, 1.0), (8, False, 0.25), (100, False, 0.5), (1000, False, 1.0)]
)
def test_reports_are_newer_where_other_gateways_send_requests_too(workers: int, alone: bool, seconds: float) -> None:
    assert period_seconds(workers, alone=alone) == seconds


@pytest.mark.parametrize("page", [b'{"x":' + b"[" * 5000, b"", b"[]", b"\xff"])
async def test_one_agents_page_keeps_no_other_from_being_read(make_site: MakeSite, page: bytes) -> None:
    agents = {"bad": await Agent(page).start(), "good": await Agent(report()).start()}
    engines = [Engine(name, Role.MIXED, facts={"agent_port": agent.port}) for name, agent in agents.items()]
    site = await make_site(*engines)
    await site.gateway.poller.poll()
    known = {worker.name: worker.report is not None for worker in site.gateway.registry.workers}
    assert known == {"bad": False, "good": True}
    for agent in agents.values():
        await agent.stop()
