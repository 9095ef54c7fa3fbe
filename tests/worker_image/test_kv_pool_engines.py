"""Two real engines with one pool: a prompt that one has computed is not computed again by the other one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machine import deadline_seconds, undisturbed, wait_until
from tests.worker_image.tiered_engine import BLOCK_TOKENS, Answer, TieredEngine, tiered_engine

from fulcrum_worker.kv.pool.names import BAD_BLOCKS, PROBLEM

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

TOKENS = 2000
IN_BLOCKS = TOKENS // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Pair:
    first: TieredEngine
    second: TieredEngine
    pool: Path

    def prompt(self) -> tuple[list[int], Answer]:
        """A prompt of which the first engine has put everything into the pool, and its answer there.

        At least the first 8 tokens of the answer are sure: where other chunks of a prompt are computed, rounding is
        another one.
        """
        for _ in range(20):
            prompt = self.first.prompt(TOKENS)
            answer = self.first.ask(prompt, max_tokens=64, logprobs=2)
            if len(answer.decided_tokens) >= 8:
                wait_until(self.is_stored, seconds=60, what="the pool has it")
                return prompt, answer
        raise AssertionError("no answer of 20 is sure of 8 tokens")

    def is_stored(self) -> bool:
        stored = self.first.metric("vllm:kv_offload_store_bytes_total")
        return 0 < stored <= self.first.metric("vllm:kv_offload_tiering_write_bytes_total")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pool = tmp_path_factory.mktemp("pool")
    folders = [tmp_path_factory.mktemp("engine") for _ in range(2)]  # mktemp is not thread-safe
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:

        def start(folder: Path) -> TieredEngine:
            return stack.enter_context(tiered_engine(folder, pool=pool, light=True))

        first, second = (each.result() for each in [threads.submit(start, folder) for folder in folders])
        for engine in (first, second):
            for tokens in (100, 400, 1200, TOKENS, 100):  # it learns how fast it is: what it does not load, it computes
                engine.ask(engine.prompt(tokens), max_tokens=2, cache_salt=engine.folder.name)
        yield Pair(first, second, pool)


def from_pool(engine: TieredEngine) -> float:
    return engine.metric("vllm:prompt_tokens_cached_by_source_total", source="disk")


def says_the_same(restored: Answer, cold: Answer) -> bool:
    sure = cold.decided_tokens
    return restored.tokens[: len(sure)] == sure


def test_the_other_engine_answers_the_same_and_sooner(pair: Pair) -> None:
    def restored_by_cold() -> float:
        prompt, cold = pair.prompt()
        before = from_pool(pair.second)
        restored = pair.second.ask(prompt, max_tokens=64)
        assert from_pool(pair.second) - before == IN_BLOCKS
        assert says_the_same(restored, cold)
        return restored.ttft_seconds / cold.ttft_seconds

    undisturbed(restored_by_cold, at_most=0.5, what="benchmarks/kv_pool.py has the figures")


def test_answers_are_in_the_pool_too(pair: Pair) -> None:
    prompt = pair.first.prompt(1000)
    answer = pair.first.ask(prompt, max_tokens=200)
    wait_until(pair.is_stored, seconds=60, what="the pool has it")
    before = from_pool(pair.second)
    turn = [*prompt, *answer.tokens]
    pair.second.ask([*turn, *pair.first.prompt(40)], max_tokens=4)
    assert from_pool(pair.second) - before >= len(turn) - 1 - BLOCK_TOKENS


def test_another_salt_never_shares(pair: Pair) -> None:
    prompt = pair.first.prompt(TOKENS)
    pair.first.ask(prompt, max_tokens=2, cache_salt="one customer")
    wait_until(pair.is_stored, seconds=60, what="the pool has it")
    before = from_pool(pair.second)
    pair.second.ask(prompt, max_tokens=2, cache_salt="another customer")
    pair.second.ask(prompt, max_tokens=2)
    assert from_pool(pair.second) == before
    pair.second.forget()
    pair.second.ask(pair.first.prompt(100), max_tokens=2)
    assert from_pool(pair.second) == before
    pair.second.ask(prompt, max_tokens=2, cache_salt="one customer")
    assert from_pool(pair.second) > before, "the same customer's is there"


def test_spoilt_blocks_are_computed_again(pair: Pair) -> None:
    prompt, cold = pair.prompt()
    for number, file in enumerate(sorted(pair.pool.rglob("*.kv"))):
        content = bytearray(file.read_bytes())
        if number % 2:
            content = content[: len(content) // 2]
        else:
            content[len(content) // 2] ^= 4
        file.write_bytes(content)
    before = pair.second.metric(f"{BAD_BLOCKS}_total")
    restored = pair.second.ask(prompt, max_tokens=64)
    assert pair.second.metric(f"{BAD_BLOCKS}_total") > before
    assert says_the_same(restored, cold)


def test_a_pool_that_turns_slow_costs_little_more_than_computing(pair: Pair) -> None:
    slow_seconds = deadline_seconds(2.0)

    def trusted() -> bool:
        prompt, _ = pair.prompt()
        before = from_pool(pair.second)
        pair.second.ask(prompt, max_tokens=1)
        return from_pool(pair.second) > before

    def restored_by_computed() -> float:
        wait_until(trusted, seconds=120, what="a pool that was slow is tried again")
        prompt, cold = pair.prompt()
        pair.second.set(pool_seconds_per_block=0.0, then_pool_seconds_per_block=slow_seconds, blocks_before=8)
        before = from_pool(pair.second)
        restored = pair.second.ask(prompt, max_tokens=64)
        pair.second.set()
        assert from_pool(pair.second) > before, "what came before it turned slow is used"
        assert says_the_same(restored, cold)
        assert restored.ttft_seconds < 8 * slow_seconds, "it does not wait for eight blocks"
        computed = (pair.second.ask(pair.first.prompt(TOKENS), max_tokens=1) for _ in range(2))
        return restored.ttft_seconds / max(cold.ttft_seconds, *(each.ttft_seconds for each in computed))

    undisturbed(restored_by_computed, at_most=1.4)


def test_a_pool_that_goes_and_comes_back(pair: Pair) -> None:
    prompt, cold = pair.prompt()
    root, away = pair.pool / "fulcrum-kv", pair.pool / "away"
    root.rename(away)
    root.write_text("no folder")
    restored = pair.second.ask(prompt, max_tokens=64)
    assert says_the_same(restored, cold)
    assert pair.second.metric(PROBLEM, problem="gone") == 1
    root.unlink()
    away.rename(root)

    def works() -> bool:
        pair.second.ask(pair.second.prompt(100), max_tokens=2)
        return pair.second.metric(PROBLEM) == 0

    wait_until(works, seconds=60, what="it is tried again")
