"""`/tokenize` and `/detokenize`: passed to any one worker, guarded and judged like the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen

from fulcrum.api.names import Role

TOKENS = {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}


async def tokenizes(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await engine.send(writer, 200, {**TOKENS, "by": engine.name} if seen.path == "/tokenize" else {"prompt": "hi"})
    return True


async def dies(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return True


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/tokenize", {"model": "m", "prompt": "hi"}, {**TOKENS, "by": "p"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}, {**TOKENS, "by": "p"}),
        ("/detokenize", {"model": "m", "tokens": [1, 2]}, {"prompt": "hi"}),
    ],
)
async def test_a_worker_answers(make_site: MakeSite, path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    engine = Engine("p", Role.PREFILL, behave=tokenizes)
    site = await make_site(engine)
    answered = await site.post(body, path, "X-Request-Id: my-id\r\n")
    assert (answered.status, answered.json()) == (200, answer)
    assert answered.headers["x-fulcrum-path"] == "p"
    assert (engine.seen[0].path, engine.seen[0].body) == (path, body)
    assert engine.seen[0].headers["x-request-id"] == "my-id"
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{path}",code="200"}}') == 1
    assert await site.metric('fulcrum_gateway_legs_total{leg="tokenize",outcome="answered"}') == 1
    assert await site.metric("fulcrum_gateway_arrivals_total") == 0, "it is no load"


async def test_another_worker_is_asked_where_one_dies(make_site: MakeSite) -> None:
    site = await make_site(
        Engine("a", Role.MIXED, behave=dies), Engine("b", Role.MIXED, behave=dies), Engine("c", Role.MIXED, behave=dies)
    )
    site.engines["c"].behave = tokenizes
    for _ in range(4):  # what died is avoided
        assert (await site.post({"prompt": "hi"}, "/tokenize")).json()["by"] == "c"
    site.engines["c"].behave = dies
    assert (await site.post({"prompt": "hi"}, "/tokenize")).status == 502


async def test_an_engines_refusal_is_passed_on(make_site: MakeSite) -> None:
    async def refuse(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 400, {"error": {"message": "bad", "code": 400}})
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=refuse))
    answered = await site.post({"tokens": "x"}, "/detokenize")
    assert (answered.status, answered.json()["error"]["message"]) == (400, "bad")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "other", "prompt": "x"}, 404),
        ([], 400),
        (b"{", 400),
        ({"prompt": "x", "vllm_xargs": {"a": 1}}, 400),
        ({"messages": [{"role": "user", "content": [{"image_url": {"url": "http://127.0.0.1/x"}}]}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": "AA"}]}]}, 400),
        ({"messages": 7}, 200),
    ],
)
async def test_what_is_refused_reaches_no_worker(make_site: MakeSite, body: object, status: int) -> None:
    engine = Engine("m", Role.MIXED, behave=tokenizes)
    site = await make_site(engine)
    assert (await site.post(body, "/tokenize")).status == status
    assert len(engine.seen) == (status == 200)


async def test_without_a_worker_it_is_503(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.DRAINING))
    answered = await site.post({"prompt": "x"}, "/tokenize")
    assert (answered.status, answered.headers["x-fulcrum-rejected"]) == (503, "NoWorker")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_key_is_needed_and_charged(make_site: MakeSite, tmp_path: Path, path: str) -> None:
    (tmp_path / "one").write_text('{"key": "secret-one", "requestsPerMinute": 1}')
    engine = Engine("m", Role.MIXED, behave=tokenizes)
    site = await make_site(engine, config={"api_keys_directory": str(tmp_path)})
    assert (await site.post({"prompt": "x"}, path)).status == 401
    assert engine.seen == []
    assert (await site.post({"prompt": "x"}, path, "Authorization: Bearer secret-one\r\n")).status == 200
    assert (await site.post({"prompt": "x"}, path, "Authorization: Bearer secret-one\r\n")).status == 429
