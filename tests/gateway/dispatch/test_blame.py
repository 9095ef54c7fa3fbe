"""Whose fault a failure is: a request that makes engines fail must not take workers away from others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, Site

from fulcrum.api.names import Role

GOOD = {"model": "m", "prompt": "x", "max_tokens": 3}
POISON = {**GOOD, "prompt": "poison"}


async def own_error(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    """Status 500, and for a stream an error as its first event: vLLM does either."""
    if seen.body["prompt"] != "poison":
        return False
    if seen.body.get("stream"):
        await engine.head(writer)
        await engine.event(writer, '{"error":{"message":"x","type":"InternalServerError","code":500}}')
        writer.write(b"0\r\n\r\n")
    else:
        await engine.send(writer, 500, {"error": {"message": "list index out of range"}})
    return True


def suspects(site: Site) -> list[str]:
    return [worker.name for worker in site.gateway.registry.workers if worker.suspect]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("layout", ["mixed", "two legs", "one worker"])
async def test_a_request_that_every_engine_fails_at_blames_none(make_site: MakeSite, layout: str, stream: bool) -> None:
    roles = {
        "mixed": [Role.MIXED] * 3, "two legs": [Role.PREFILL] * 2 + [Role.DECODE] * 2, "one worker": [Role.MIXED],
    }[layout]  # fmt: skip
    engines = [Engine(f"{role.value}-{number}", role, behave=own_error) for number, role in enumerate(roles)]
    site = await make_site(*engines, slo_seconds=(9.0, 9.0))
    assert (await site.post(GOOD)).status == 200
    for _ in range(20):
        bad = await site.post({**POISON, "stream": stream})
        assert (bad.status, bad.json()["error"]["code"]) == (500, "engine_error")
        assert "retry-after" not in bad.headers
        assert suspects(site) == []
        assert (await site.post(GOOD)).status == 200
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"}') == 0
    assert await site.metric("fulcrum_gateway_ejections_total") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", [Role.MIXED, Role.PREFILL, Role.DECODE])
async def test_a_worker_that_fails_at_what_another_serves_is_left_alone(
    make_site: MakeSite, role: Role, stream: bool
) -> None:
    async def always(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 500, {})
        return True

    others = [Engine("m", Role.MIXED)] if role is Role.MIXED else [Engine("p", Role.PREFILL), Engine("d", Role.DECODE)]
    site = await make_site(Engine("broken", role, behave=always), *others)
    for _ in range(4):
        assert (await site.post({**GOOD, "stream": stream})).status == 200
    assert suspects(site) == ["broken"]


async def test_where_nobody_is_served_it_is_a_failure_of_ours(make_site: MakeSite) -> None:
    async def always(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 500, {})
        return True

    engines = [Engine(f"m-{number}", Role.MIXED, behave=always) for number in range(2)]
    site = await make_site(*engines, slo_seconds=(9.0, 9.0))
    codes = [(await site.post(GOOD)).status for _ in range(20)]
    assert codes[-1] == 502
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"}') > 0


async def test_a_client_that_asks_for_more_than_there_is_time_for_blames_none(make_site: MakeSite) -> None:
    from fulcrum.api.gateway import GatewayLimits

    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.body["prompt"] == "poison":
            await asyncio.sleep(60)
        return False

    site = await make_site(Engine("m", Role.MIXED, behave=slow), limits=GatewayLimits(request_timeout_seconds=1.0))
    late = asyncio.create_task(site.post(POISON))
    answers: list[Any] = []
    while not late.done():
        answers.append((await site.post(GOOD)).status)
        await asyncio.sleep(0.02)
    assert (await late).status in (502, 504)
    assert set(answers) == {200}
    assert suspects(site) == []
