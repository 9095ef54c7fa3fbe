"""The gateway speaks to workers with its cluster's token, and never with what a client sent."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually

from fulcrum.api.names import Role
from fulcrum.gateway.config import ConfigError, read_settings

BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3}
CLIENTS = "Authorization: Bearer client-key\r\nX-Api-Key: k\r\nCookie: c=1\r\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_both_legs_carry_the_token_and_nothing_of_the_client(make_site: MakeSite, stream: bool) -> None:
    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE), token="cluster-token")
    for path in ("/v1/completions", "/v1/completions"):
        answered = await site.post({**BODY, "stream": stream}, path, CLIENTS)
        assert answered.status == 200
    seen = [each for engine in site.engines.values() for each in engine.seen]
    assert {each.leg for each in seen} == {"prefill", "decode"}
    for each in seen:
        assert each.headers["authorization"] == "Bearer cluster-token"
        assert "client-key" not in str(each.headers)
        assert set(each.headers) == {"host", "authorization", "content-type", "content-length", "x-request-id"}
    assert "cluster-token" not in repr(site.gateway.settings)


async def test_without_a_token_there_is_no_such_header(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    assert (await site.post(BODY, headers=CLIENTS)).status == 200
    assert "authorization" not in site.engines["m"].seen[0].headers


async def test_canaries_and_questions_to_agents_carry_it(make_site: MakeSite) -> None:
    agent = await Agent(report()).start()
    engines = [Engine("p", Role.PREFILL), Engine("d", Role.DECODE, facts={"agent_port": agent.port})]
    site = await make_site(*engines, token="cluster-token", prewarm=True)
    await eventually(lambda: all(engine.seen for engine in site.engines.values()) and bool(agent.asked))
    for engine in site.engines.values():
        assert engine.seen[0].headers["x-request-id"].startswith("prewarm-")
        assert {each.headers["authorization"] for each in engine.seen} == {"Bearer cluster-token"}
    assert all(b"\r\nauthorization: Bearer cluster-token\r\n" in asked for asked in agent.asked)
    await agent.stop()


async def test_a_worker_that_asks_for_another_token_is_left_alone(make_site: MakeSite) -> None:
    """And its 401 is no client's business: their own keys were looked at before."""

    async def refuses(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 401, {"error": "Unauthorized"})
        return True

    site = await make_site(Engine("other", Role.MIXED, behave=refuses), Engine("ours", Role.MIXED), token="t")
    for _ in range(6):
        assert (await site.post(BODY)).status == 200
    assert [worker.name for worker in site.gateway.registry.workers if worker.suspect] == ["other"]
    assert await site.metric('fulcrum_gateway_legs_total{outcome="refused"}') > 0
    alone = await make_site(Engine("other", Role.MIXED, behave=refuses), token="t")
    assert (await alone.post(BODY)).status in (502, 503)


@pytest.mark.parametrize(("text", "token"), [(None, None), ("", None), ("abc-_9", "abc-_9")])
def test_the_token_comes_from_the_environment(text: str | None, token: str | None) -> None:
    environment = {} if text is None else {"FULCRUM_INTERNAL_TOKEN": text}
    settings = read_settings(environment, static_workers=("mixed=http://127.0.0.1:1",), served_name="m")
    assert settings.token == token


@pytest.mark.parametrize("text", ["a b", "a\r\nx: y", "\u00e9"])
def test_what_cannot_be_sent_in_a_header_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="FULCRUM_INTERNAL_TOKEN: cannot be sent in a header"):
        read_settings({"FULCRUM_INTERNAL_TOKEN": text}, static_workers=("mixed=http://127.0.0.1:1",), served_name="m")
