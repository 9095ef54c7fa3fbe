"""Embeddings, scores and reranking: one leg to a worker that routing chose, judged and counted like the rest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen

from fulcrum.api.names import Role
from fulcrum.api.serving_types import ModelTask
from fulcrum.gateway.api_formats.inference_request import ENGINE_PATHS

POOLING = {"task": ModelTask.POOLING}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": [0.5, -1.0]}]},
    "/v1/score": {"object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}]},
    "/v1/rerank": {"id": "r", "results": [{"index": 0, "document": {"text": "d"}, "relevance_score": 0.5}]},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "m", "input": ["one", "two"]},
    "/v1/score": {"model": "m", "queries": "q", "documents": ["one", "two"]},
    "/v1/rerank": {"model": "m", "query": "q", "documents": ["one", "two"]},
}
PROMPT_TOKENS = 11


async def pools(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    """Answer as vLLM does: its count of output tokens is 0, or absent."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    if seen.path != "/v1/rerank":
        usage["completion_tokens"] = 0
    answer = next(ANSWERS[path] for path in ANSWERS if seen.path == ENGINE_PATHS.get(path, path))
    await engine.send(writer, 200, {**answer, "usage": usage})
    return True


async def dies(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return True


@pytest.mark.parametrize("path", ANSWERS)
async def test_a_worker_answers_and_it_is_load(make_site: MakeSite, path: str) -> None:
    engine = Engine("a", Role.MIXED, behave=pools)
    site = await make_site(engine, config=POOLING, slo_seconds=(60.0, 0.1))
    answered = await site.post(BODIES[path], path, "X-Request-Id: my-id\r\n")
    assert answered.status == 200
    assert {name: answered.json()[name] for name in ANSWERS[path]} == ANSWERS[path]
    assert answered.headers["x-fulcrum-path"] == "a"
    assert (engine.seen[0].path, engine.seen[0].body) == (ENGINE_PATHS.get(path, path), BODIES[path])
    assert engine.seen[0].headers["x-request-id"] == "my-id"
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{path}",code="200"}}') == 1
    assert await site.metric("fulcrum_gateway_arrivals_total") == 1
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == PROMPT_TOKENS
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 1, "an answer counts as one token"
    assert await site.metric("fulcrum_gateway_time_to_first_token_seconds_count") == 1, "of the whole answer"
    assert await site.metric("fulcrum_gateway_time_per_output_token_seconds_count") == 0
    assert await site.metric('fulcrum_gateway_slo_total{outcome="met"}') == 1


async def test_equally_good_workers_take_turns_and_a_dead_one_is_passed_over(make_site: MakeSite) -> None:
    site = await make_site(*(Engine(name, Role.MIXED, behave=pools) for name in "ab"), config=POOLING)
    for _ in range(4):
        assert (await site.post(BODIES["/v1/embeddings"], "/v1/embeddings")).status == 200
    assert [len(site.engines[name].seen) for name in "ab"] == [2, 2]
    site.engines["a"].behave = dies
    for _ in range(4):
        assert (await site.post(BODIES["/v1/embeddings"], "/v1/embeddings")).headers["x-fulcrum-path"] == "b"


async def test_a_key_is_charged_the_tokens_of_the_prompt(make_site: MakeSite, tmp_path: Path) -> None:
    (tmp_path / "one").write_text(json.dumps({"key": "secret-one", "tokensPerMinute": 2 * PROMPT_TOKENS + 1}))
    site = await make_site(
        Engine("a", Role.MIXED, behave=pools), config={**POOLING, "api_keys_directory": str(tmp_path)}
    )
    # A list of ids is counted, and so estimated rightly; the one token of its answer is given back.
    body = {"input": list(range(PROMPT_TOKENS))}
    assert (await site.post(body, "/v1/embeddings")).status == 401
    key = "Authorization: Bearer secret-one\r\n"
    assert [(await site.post(body, "/v1/embeddings", key)).status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("config", "path", "needs"),
    [
        *((POOLING, path, "Generate") for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses")),
        (POOLING, "/v1/messages", "Generate"),
        (POOLING, "/v1/messages/count_tokens", "Generate"),
        *(({}, path, "Pooling") for path in ANSWERS),
    ],
)
async def test_a_model_of_the_other_task_is_404_with_the_reason(
    make_site: MakeSite, config: dict[str, Any], path: str, needs: str
) -> None:
    engine = Engine("a", Role.MIXED, behave=pools)
    site = await make_site(engine, config=config)
    answered = await site.post({"messages": [{"role": "user", "content": "x"}], "input": "x"}, path)
    assert answered.status == 404
    assert f"spec.model.task is {needs}" in answered.json()["error"]["message"]
    assert engine.seen == []


async def test_a_model_of_the_other_task_asks_for_a_key_first(make_site: MakeSite, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("secret-one")
    site = await make_site(Engine("a", Role.MIXED), config={"api_keys_directory": str(tmp_path)})
    assert (await site.post({"input": "x"}, "/v1/embeddings")).status == 401


async def test_many_texts_are_longer_together_than_the_model(make_site: MakeSite) -> None:
    site = await make_site(Engine("a", Role.MIXED, behave=pools), config={**POOLING, "max_model_len": 8})
    assert (await site.post({"input": [[1, 2, 3, 4]] * 100}, "/v1/embeddings")).status == 200
    assert await site.metric("fulcrum_gateway_arrived_prompt_tokens_sum") == 400
