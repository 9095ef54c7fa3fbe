"""A real engine computes the front of a prefix while the rest of it is loaded. Figures: `benchmarks/kv_restore.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.machine import deadline_seconds, undisturbed
from tests.worker_image.agents import SERVED_NAME, wait_until
from tests.worker_image.tiered_engine import BLOCK_TOKENS, ROOM_TOKENS, Answer, TieredEngine, tiered_engine

from fulcrum.api.worker import KvResidency, SpeedCoefficients
from fulcrum.kv import How
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.kv.events import KvEvents

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

MATCHED = 1984
ROUNDING = 0.15
"""Difference of log probabilities in bf16."""
PROMPT = MATCHED + BLOCK_TOKENS
MIN_DECIDED = 8
"""First tokens of an answer, of 16, that must be sure. A split that the engine chooses differs from run to run, and
other chunks of a prompt round otherwise."""


@pytest.fixture(scope="module")
def files() -> Iterator[EngineFiles]:
    with tempfile.TemporaryDirectory() as name:  # short: sockets are in it
        yield EngineFiles(Path(name))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, files: EngineFiles) -> Iterator[TieredEngine]:
    with tiered_engine(tmp_path_factory.mktemp("tiered"), files=files, light=True) as engine:
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
    async with asyncio.timeout(deadline_seconds(60)):
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
        prompt, cold = asked_cold(engine)
        sure = len(cold.decided_tokens)
        before = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        from_host = engine.metric("vllm:prompt_tokens_cached_by_source_total", source="host")
        engine.set(split=split)
        engine.forget()
        restored = engine.ask(prompt)
        loaded = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") - before
        assert loaded == MATCHED - split, f"the rest behind {split} came over the link"
        told = engine.metric("vllm:prompt_tokens_cached_by_source_total", source="host") - from_host
        assert told == loaded, "and is counted as from host memory"
        assert restored.tokens[:sure] == cold.decided_tokens, f"split at {split}"
        # Other chunks round otherwise; KV of another place would be far off.
        assert restored.logprobs[:sure] == pytest.approx(cold.logprobs[:sure], abs=ROUNDING), f"split at {split}"


def asked_cold(engine: TieredEngine) -> tuple[list[int], Answer]:
    """Return a prompt, and its cold answer, whose first tokens rounding cannot change."""
    for _ in range(20):
        prompt = engine.prompt(PROMPT)
        answer = engine.ask(prompt, logprobs=2)
        if len(answer.decided_tokens) >= MIN_DECIDED:
            return prompt, answer
    raise AssertionError(f"no answer of 20 is sure of {MIN_DECIDED} tokens")


def decided(engine: TieredEngine) -> tuple[list[int], tuple[int, ...]]:
    """Return a prompt, and the first tokens of its cold answer, which rounding cannot change."""
    prompt, answer = asked_cold(engine)
    return prompt, answer.decided_tokens


def test_both_at_once_are_quicker_than_either(engine: TieredEngine) -> None:
    prompt, expected = decided(engine)

    def both_by_either() -> float:
        before, _ = again(engine, prompt, split="none")
        parity = MATCHED * engine.bytes_per_token / before
        load, _ = again(engine, prompt, split="load", bytes_per_second=parity)
        seconds, tokens = again(engine, prompt, split="auto", bytes_per_second=parity)
        after, _ = again(engine, prompt, split="none")
        assert tokens[: len(expected)] == expected
        return seconds / min(load, before, after)

    undisturbed(both_by_either, at_most=0.85, what=lambda: str(engine.decision()))


def known_seconds(engine: TieredEngine) -> tuple[float, float]:
    """What loading and computing the prefix takes, each alone, as the engine knew it when it last decided."""
    known = engine.decision()
    speed = msgspec.convert(known["speed"], SpeedCoefficients)
    recompute = speed.prefill_a + speed.prefill_b * MATCHED + speed.prefill_c * MATCHED**2
    return MATCHED * float(known["seconds_per_token"]), recompute


def test_an_engine_that_is_told_of_a_long_promise_leaves_the_compute_to_others(engine: TieredEngine) -> None:
    prompt, expected = decided(engine)
    again(engine, prompt, split="load")
    # Loading alone is to lie well between both at once and recomputing alone, however busy the machine is: so the rate
    # follows what the engine knows of its own speed, and the engine knows the rate before it has to choose.
    _, recompute = known_seconds(engine)
    rate = 2 * MATCHED * engine.bytes_per_token / recompute
    for _ in range(30):
        again(engine, prompt, split="load", bytes_per_second=rate)
        load, recompute = known_seconds(engine)
        if 0.3 * recompute <= load <= 0.75 * recompute:
            break
    else:
        raise AssertionError(f"it does not learn the rate {rate:g}: {engine.decision()}")
    engine.set(split="auto", bytes_per_second=rate)
    hows = []
    for promise in ({}, {"ttft_seconds": 60.0}):
        engine.forget()
        answer = engine.ask(prompt, kv_transfer_params=promise)
        assert answer.tokens[: len(expected)] == expected
        hows.append(How(engine.decision()["way"]["how"]))
    assert hows == [How.FRONT, How.LOAD], engine.decision()


def test_a_link_that_turns_slow_costs_little_more_than_computing(engine: TieredEngine) -> None:
    prompt, expected = decided(engine)

    def restored_by_computed() -> float:
        before, _ = again(engine, prompt, split="none")
        parity = MATCHED * engine.bytes_per_token / before
        again(engine, prompt, split="load", bytes_per_second=parity)
        seconds, tokens = again(
            engine, prompt, split="auto", bytes_per_second=parity, then_bytes_per_second=parity / 20, blocks_before=8
        )
        assert tokens[: len(expected)] == expected
        after, _ = again(engine, prompt, split="none")
        return seconds / max(before, after)

    undisturbed(restored_by_computed, at_most=1.3, what="20 times slower; loading alone would take 17 times as long")


def test_a_request_that_goes_in_mid_load_leaves_nothing_behind(engine: TieredEngine) -> None:
    prompt, expected = decided(engine)
    engine.set(split=992, bytes_per_second=(MATCHED - 992) * engine.bytes_per_token / 11)
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
    assert tokens[: len(expected)] == expected
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
