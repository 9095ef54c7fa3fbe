"""A pooling model on a real engine, started by the worker's own command, and asked through a gateway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.machine import deadline_seconds
from tests.worker_image import tiny_encoder
from tests.worker_image.agents import SERVED_NAME, START_SECONDS, Agent, post_json, start_agent, worker_config

from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.names import PORT_AGENT, PORT_ENGINE, Role
from fulcrum.api.serving_types import ModelTask
from fulcrum.api.worker import KvCacheConfig
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings
from fulcrum.gateway.worker_record import WorkerRecord

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

ROUNDING = 1e-4
"""Unlike kernels round unlike: components of an embedding of length 1 in float32."""


class Encoder(NamedTuple):
    agent: Agent
    expected: dict[str, list[float]]
    """What transformers computes, by text."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """A BERT: its attention is bidirectional, so that it has no KV cache."""
    folder: Path = tmp_path_factory.mktemp("encoder")
    model = folder / "model"
    subprocess.run([sys.executable, tiny_encoder.__file__, str(model)], check=True)
    config = worker_config(
        model=str(model),
        task=ModelTask.POOLING,
        exchanges_kv=False,
        max_model_len=None,
        kv_cache=KvCacheConfig(dtype="auto"),
        engine_args=("--dtype", "float32"),
    )
    agent = start_agent(folder, config)
    try:
        agent.wait_ready(seconds=START_SECONDS)
        yield Encoder(agent, json.loads((model / tiny_encoder.EXPECTED).read_text()))
    finally:
        agent.kill()


@pytest.fixture
async def gateway(encoder: Encoder) -> AsyncIterator[Gateway]:
    config = GatewayConfig(cluster="c", served_name=SERVED_NAME, model="m", task=ModelTask.POOLING)
    worker = WorkerRecord(
        name="w", role=Role.MIXED, host=encoder.agent.ip, port=PORT_ENGINE, agent_port=PORT_AGENT, pool="cpu"
    )
    settings = Settings(config=config, host="127.0.0.1", port=0, static_workers=(worker,), lame_duck_seconds=0.0)
    made = Gateway(settings, asyncio.get_running_loop())
    await made.start()
    yield made
    await made.stop()


async def ask(gateway: Gateway, path: str, **body: Any) -> Any:
    return await asyncio.to_thread(post_json, f"http://127.0.0.1:{gateway.port}{path}", {"model": SERVED_NAME, **body})


def embeddings(answer: Any) -> list[list[float]]:
    return [one["embedding"] for one in answer["data"]]


async def test_embeddings_are_those_of_the_engine_and_of_transformers(encoder: Encoder, gateway: Gateway) -> None:
    texts = [*encoder.expected]
    answer = await ask(gateway, "/v1/embeddings", input=texts)
    direct = await asyncio.to_thread(
        post_json, f"{encoder.agent.engine_url}/v1/embeddings", {"model": SERVED_NAME, "input": texts}
    )
    assert embeddings(answer) == [pytest.approx(each, abs=1e-6) for each in embeddings(direct)]
    assert embeddings(answer) == [pytest.approx(each, abs=ROUNDING) for each in encoder.expected.values()]
    words = sum(len(text.split()) + 2 for text in texts)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (words, words)
    one, other = encoder.expected[texts[0]], encoder.expected[texts[2]]
    assert one != pytest.approx(other, abs=100 * ROUNDING), "what the comparison above rests on"


async def test_scores_and_ranks_are_those_of_the_embeddings(encoder: Encoder, gateway: Gateway) -> None:
    query, *documents = encoder.expected
    cosines = [
        sum(one * other for one, other in zip(encoder.expected[query], encoder.expected[each], strict=True))
        for each in documents
    ]
    scored = await ask(gateway, "/v1/score", text_1=query, text_2=documents)
    assert [one["score"] for one in scored["data"]] == [pytest.approx(each, abs=10 * ROUNDING) for each in cosines]
    ranked = await ask(gateway, "/v1/rerank", query=query, documents=documents)
    best = [documents[each["index"]] for each in ranked["results"]]
    assert best == sorted(documents, key=lambda text: -cosines[documents.index(text)])


async def test_its_measured_speed_is_what_admission_predicts_by(encoder: Encoder, gateway: Gateway) -> None:
    load = encoder.agent.load()
    assert load.speed is not None, encoder.agent.tail()
    assert load.speed.prefill_a + 512 * load.speed.prefill_b > 0
    assert (load.keeps_kv, load.kv_capacity_tokens, load.kv_usage) == (False, None, None)
    until = asyncio.get_running_loop().time() + deadline_seconds(60)
    while True:
        before = gateway.admission.unpredicted[0]
        await ask(gateway, "/v1/embeddings", input="w1")
        if gateway.admission.unpredicted[0] == before:
            break
        assert asyncio.get_running_loop().time() < until, "the gateway never learnt how fast the worker is"
    assert encoder.agent.load().idle
    assert not gateway.admission.core.rejected


async def test_what_it_cannot_do_is_said_by_gateway_and_engine(encoder: Encoder, gateway: Gateway) -> None:
    chat = {"messages": [{"role": "user", "content": "w1"}], "model": SERVED_NAME}
    for url in (f"http://127.0.0.1:{gateway.port}", encoder.agent.engine_url):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(post_json, f"{url}/v1/chat/completions", chat)
        refused.value.close()
        assert refused.value.code == 404
    with pytest.raises(urllib.error.HTTPError) as too_long:
        await ask(gateway, "/v1/embeddings", input=[7] * 600)
    too_long.value.close()
    assert too_long.value.code == 400


def test_it_drains_and_ends_well(encoder: Encoder) -> None:
    """Last: the worker is gone then."""
    encoder.agent.process.terminate()
    assert encoder.agent.wait_exit(seconds=60) == 0, encoder.agent.tail()
