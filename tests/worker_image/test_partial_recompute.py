"""A real engine computes the front of a prefix while the rest of it is loaded. Figures: `benchmarks/kv_restore.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker_image.agents import SERVED_NAME, wait_until
from tests.worker_image.tiered_engine import BLOCK_TOKENS, ROOM_TOKENS, TieredEngine, bytes_per_token, tiered_engine

from fulcrum.api.worker import KvResidency
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.kv.events import KvEvents

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

MATCHED = 1984
ROUNDING = 0.15
"""Difference of log probabilities in bf16."""
PROMPT = MATCHED + BLOCK_TOKENS


@pytest.fixture(scope="module")
def files() -> Iterator[EngineFiles]:
    with tempfile.TemporaryDirectory() as name:  # short: sockets are in it
        yield EngineFiles(Path(name))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, files: EngineFiles) -> Iterator[TieredEngine]:
    with tiered_engine(tmp_path_factory.mktemp("tiered"), files=files) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(started: TieredEngine) -> TieredEngine:
    for tokens in (100, 400, 1200, 2000):
        started.ask(started.prompt(tokens), max_tokens=4)
    return started


def test_it_tells_what_it_holds_and_drives_out_from_its_first_request_on(
    started: TieredEngine, files: EngineFiles
) -> None:
    found = asyncio.run(_heard(started, files))
    assert found.missed_batches == 0
    assert 0 < found.device_tokens <= ROOM_TOKENS * 9 // 8
    assert found.device_evicted_tokens >= BLOCK_TOKENS
    assert found.host_tokens >= 3 * 1500, "what the device lost is there"


async def _heard(engine: TieredEngine, files: EngineFiles) -> KvResidency:
    events = KvEvents()
    following = asyncio.create_task(events.follow(files.events))
    for _ in range(3):
        prompt = await asyncio.to_thread(engine.prompt, 1600)
        await asyncio.to_thread(engine.ask, prompt, max_tokens=2)
    async with asyncio.timeout(60):
        while events.residency().host_tokens < 3 * 1500:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.05)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return events.residency()


def again(engine: TieredEngine, prompt: list[int], **link: float | str | None) -> tuple[float, tuple[int, ...]]:
    engine.set(**link)
    engine.forget()
    answer = engine.ask(prompt)
    return answer.ttft_seconds, answer.tokens


def test_tokens_are_those_of_a_cold_prompt_at_every_split(engine: TieredEngine) -> None:
    for split in (BLOCK_TOKENS, 448, 992, 1536, MATCHED - BLOCK_TOKENS):
        prompt = engine.prompt(PROMPT)
        cold = engine.ask(prompt)
        before = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        from_host = engine.metric("vllm:prompt_tokens_cached_by_source_total", source="host")
        engine.set(split=split)
        engine.forget()
        restored = engine.ask(prompt)
        loaded = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") - before
        assert loaded == MATCHED - split, f"the rest behind {split} came over the link"
        told = engine.metric("vllm:prompt_tokens_cached_by_source_total", source="host") - from_host
        assert told == loaded, "and is counted as from host memory"
        assert restored.tokens == cold.tokens, f"split at {split}"
        # Other chunks round otherwise; KV of another place would be far off.
        assert restored.logprobs == pytest.approx(cold.logprobs, abs=ROUNDING), f"split at {split}"


def test_both_at_once_are_quicker_than_either(engine: TieredEngine) -> None:
    prompt = engine.prompt(PROMPT)
    cold = engine.ask(prompt)
    recompute, _ = again(engine, prompt, split="none")
    parity = MATCHED * bytes_per_token("bf16") / recompute
    load, _ = again(engine, prompt, split="load", bytes_per_second=parity)
    seconds, tokens = again(engine, prompt, split="auto", bytes_per_second=parity)
    recompute = min(recompute, again(engine, prompt, split="none")[0])
    assert tokens == cold.tokens
    assert seconds <= 0.85 * min(load, recompute), (seconds, load, recompute, engine.decision())


def test_a_link_that_turns_slow_costs_little_more_than_computing(engine: TieredEngine) -> None:
    prompt = engine.prompt(PROMPT)
    cold = engine.ask(prompt)
    recompute, _ = again(engine, prompt, split="none")
    parity = MATCHED * bytes_per_token("bf16") / recompute
    seconds, tokens = again(
        engine, prompt, split="auto", bytes_per_second=parity, then_bytes_per_second=parity / 20, blocks_before=8
    )
    recompute = max(recompute, again(engine, prompt, split="none")[0])
    assert tokens == cold.tokens
    assert seconds <= 1.3 * recompute, "20 times slower; loading alone would take 17 times as long"


def test_a_request_that_goes_in_mid_load_leaves_nothing_behind(engine: TieredEngine) -> None:
    prompt = engine.prompt(PROMPT)
    cold = engine.ask(prompt)
    engine.set(split=992, bytes_per_second=2e6)
    engine.forget()
    with contextlib.suppress(TimeoutError), _asked(engine, prompt, seconds=1.0) as response:
        response.read()
        raise AssertionError("the load takes longer than this request waits")
    engine.set()
    wait_until(
        lambda: engine.metric("vllm:num_requests_running") + engine.metric("vllm:num_requests_waiting") == 0,
        seconds=60,
        what="the request has gone",
    )
    _, tokens = again(engine, prompt, split="auto")
    assert tokens == cold.tokens
    wait_until(lambda: engine.metric("vllm:kv_cache_usage_perc") == 0, seconds=60, what="all blocks are free")


@contextlib.contextmanager
def _asked(engine: TieredEngine, prompt: list[int], *, seconds: float) -> Iterator[urllib.request.addinfourl]:
    body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": 8}
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=seconds) as response:
        yield response


def test_the_engine_tells_how_full_host_memory_is(engine: TieredEngine) -> None:
    assert 0 < engine.metric("fulcrum_engine_kv_host_used_ratio") <= 1
    assert engine.metric("vllm:kv_offload_load_bytes_total") > 0
