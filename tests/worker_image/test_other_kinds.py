"""Models that are no Llama, on real engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.worker_image.agents import (
    REMOTE_DECODE,
    START_SECONDS,
    Agent,
    model_of_kind,
    start_agent,
    token_prompt,
    wait_until,
    worker_config,
)

from fulcrum.api.names import Role
from fulcrum.api.worker import EXIT_ENGINE_DIED, KvCacheConfig, TransferCounters

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

ANSWER_TOKENS = 16
PROMPT_TOKENS = 400
"""The first half of it is what prompts differ in."""


class Pair(NamedTuple):
    prefill: Agent
    decode: Agent


def start(kind: str, folder: Path, role: Role) -> Agent:
    """A worker with a tiny model of `kind`."""
    kv_cache = KvCacheConfig(dtype="auto", block_size=32, memory_bytes=64 << 20)
    config = worker_config(
        model=model_of_kind(kind, folder), role=role, kv_cache=kv_cache, engine_args=("--dtype", "float32")
    )
    return start_agent(folder, config, name=role.value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A mixture of experts."""
    folder: Path = tmp_path_factory.mktemp("moe")
    agents = [start("qwen3_moe", folder, role) for role in (Role.PREFILL, Role.DECODE)]
    try:
        for agent in agents:
            agent.wait_ready()
        yield Pair(*agents)
    finally:
        for agent in agents:
            agent.kill()


def prompt(number: int) -> list[int]:
    return token_prompt(number, tokens=PROMPT_TOKENS)


def tokens(answer: Any) -> list[str]:
    found: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    return found


def whole(engine: Agent, number: int) -> list[str]:
    """The answer of one engine alone."""
    return tokens(engine.complete(prompt(number), max_tokens=ANSWER_TOKENS, logprobs=0, ignore_eos=True))


def prefilled(pair: Pair, number: int, name: str) -> Any:
    """Where the prefill engine holds the prompt for a peer."""
    answer = pair.prefill.complete(prompt(number), max_tokens=1, request_id=name, kv_transfer_params=REMOTE_DECODE)
    return answer["kv_transfer_params"]


def decoded(pair: Pair, number: int, name: str, transfer: Any) -> list[str]:
    """The answer of the decode engine with what it pulls."""
    answer = pair.decode.complete(
        prompt(number), max_tokens=ANSWER_TOKENS, request_id=name, kv_transfer_params=transfer, logprobs=0,
        ignore_eos=True,
    )  # fmt: skip
    return tokens(answer)


def transfers(agent: Agent) -> TransferCounters:
    found = agent.load().transfers
    assert found is not None, agent.tail()
    return found


def test_answers_depend_on_the_first_half_of_the_prompt(pair: Pair) -> None:
    assert len({tuple(whole(pair.prefill, number)) for number in range(4)}) == 4


def test_two_legs_give_the_tokens_of_one_engine(pair: Pair) -> None:
    before = transfers(pair.decode)
    for number in (10, 11):
        expected = whole(pair.prefill, number)
        assert decoded(pair, number, f"legs-{number}", prefilled(pair, number, f"legs-{number}")) == expected
    wait_until(
        lambda: transfers(pair.decode).pulled_tokens - before.pulled_tokens >= 2 * (PROMPT_TOKENS - 1),
        seconds=60,
        what=lambda: f"the pulled tokens are counted: {transfers(pair.decode)}",
    )
    after = transfers(pair.decode)
    assert after.computed_tokens == before.computed_tokens
    assert after.failed_transfers == before.failed_transfers
    wait_until(lambda: pair.prefill.load().idle, seconds=60, what="the prefill worker gives the blocks free")


def test_the_state_of_another_prompt_gives_other_tokens(pair: Pair) -> None:
    """What the tests above compare would show a wrong block."""
    expected = whole(pair.prefill, 20)
    assert decoded(pair, 20, "wrong", prefilled(pair, 21, "wrong")) != expected


def test_a_hybrid_model_is_more_than_vllm_can_do_on_a_cpu(tmp_path: Path) -> None:
    """vLLM 0.32's mixer looks for a state of each chunk where its CPU path returns one for each request.

    With a vLLM in which this fails, `pair` is to have both kinds.
    """
    agent = start("granitemoehybrid", tmp_path, Role.PREFILL)
    try:
        assert agent.wait_exit(seconds=START_SECONDS) == EXIT_ENGINE_DIED, agent.tail()
        log = agent.log.read_text(errors="replace")
        assert "varlen_states[last_chunk_indices_p]" in log
        assert "IndexError: index 3 is out of bounds for dimension 0 with size 1" in log
    finally:
        agent.kill()
