"""A worker that is a group: ranks of data parallel that share the experts of one model, on real engines."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.worker_image.agents import (
    REMOTE_DECODE,
    Agent,
    alive,
    model_of_kind,
    post_json,
    start_agent,
    token_prompt,
    wait_until,
    worker_config,
)

from fulcrum.api.names import PORT_NIXL, Role
from fulcrum.api.worker import EXIT_ENGINE_DIED, KvCacheConfig, RankReport

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

ANSWER_TOKENS = 16
PROMPT_TOKENS = 400
BLOCK_TOKENS = 32
RANKS = 2
KV_BYTES = 32 << 20
"""Of each rank."""


class Workers(NamedTuple):
    """Two groups, and an engine alone that says what is right."""

    alone: Agent
    prefill: Agent
    decode: Agent


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Only one of them is measured at start, as that takes a while."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    model = model_of_kind("qwen3_moe", folder)
    started = []
    for role, ranks in ((Role.MIXED, 1), (Role.PREFILL, RANKS), (Role.DECODE, RANKS)):
        config = worker_config(
            model=model, role=role, data_parallel=ranks, expert_parallel=ranks > 1,
            kv_cache=KvCacheConfig(dtype="auto", block_size=BLOCK_TOKENS, memory_bytes=ranks * KV_BYTES),
            engine_args=("--dtype", "float32"), exchanges_kv=ranks > 1, measure_at_start=role is Role.PREFILL,
        )  # fmt: skip
        started.append(start_agent(folder, config, name=role.value))
    try:
        for agent in started:
            agent.wait_ready()
        yield Workers(*started)
    finally:
        for agent in started:
            agent.kill()


def prompt(number: int) -> list[int]:
    return token_prompt(number, tokens=PROMPT_TOKENS)


def answer(agent: Agent, number: int, *, rank: int | None = None, **more: Any) -> list[int]:
    """Token ids of one answer."""
    told = agent.complete(
        prompt(number), max_tokens=ANSWER_TOKENS, rank=rank, return_token_ids=True, ignore_eos=True, **more
    )
    found: list[int] = told["choices"][0]["token_ids"]
    return found


def reports(agent: Agent) -> tuple[RankReport, ...]:
    found = agent.load().ranks
    assert found is not msgspec.UNSET, agent.tail()
    return found


def settled(agent: Agent) -> tuple[RankReport, ...]:
    """Reports of an idle group once all is counted that it has answered: vLLM answers first."""
    seen: list[tuple[RankReport, ...]] = []

    def stands_still() -> tuple[RankReport, ...] | None:
        seen.append(reports(agent))
        return seen[-1] if seen[-2:-1] == seen[-1:] else None

    return wait_until(stands_still, seconds=60, pause_seconds=0.5, what=lambda: f"{seen[-2:]}")


def legs(prefill: Agent, decode: Agent, number: int, *, ranks: tuple[int, int], of: int | None = None) -> list[int]:
    """The answer of a rank of `decode` to a prompt that a rank of `prefill` holds; `of`: to another one."""
    name = f"legs-{prefill.ip}-{number}"
    params = prefill.complete(
        prompt(number), max_tokens=1, request_id=name, rank=ranks[0], kv_transfer_params=REMOTE_DECODE
    )["kv_transfer_params"]
    assert (params["remote_port"], params["remote_engine_id"][-4:]) == (PORT_NIXL + ranks[0], f"_dp{ranks[0]}")
    asked = number if of is None else of
    return answer(decode, asked, rank=ranks[1], request_id=name, kv_transfer_params=params)


def test_ranks_answer_as_one_engine_does(workers: Workers) -> None:
    expected = [answer(workers.alone, number) for number in range(4)]
    assert len(set(map(tuple, expected))) == 4, "answers depend on the first half of the prompt"
    for rank in (0, 1, None):
        assert [answer(workers.prefill, number, rank=rank) for number in range(4)] == expected


def test_a_request_goes_to_the_rank_in_its_header(workers: Workers) -> None:
    before = settled(workers.prefill)
    for _turn in range(2):
        answer(workers.prefill, 10, rank=1)
    wait_until(
        lambda: _grown(before, reports(workers.prefill), "prompts") == [0, 2],
        seconds=60,
        what=lambda: f"both requests are told of rank 1 alone: {reports(workers.prefill)}",
    )
    after = reports(workers.prefill)
    hits = [
        (rank.prefix_hit_tokens or 0) - (was.prefix_hit_tokens or 0) for rank, was in zip(after, before, strict=True)
    ]
    whole_blocks = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
    assert hits == [0, whole_blocks], "the second turn finds the first one's prefix, on this rank alone"
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer(workers.prefill, 10, rank=RANKS)
    assert refused.value.code == 400
    refused.value.close()


def _grown(before: tuple[RankReport, ...], after: tuple[RankReport, ...], counter: str) -> list[int]:
    return [getattr(new.work, counter) - getattr(old.work, counter) for old, new in zip(before, after, strict=True)]


def test_the_report_tells_of_each_rank_and_of_all(workers: Workers) -> None:
    ranks = settled(workers.prefill)
    load = workers.prefill.load()
    assert [rank.rank for rank in ranks] == [0, 1]
    assert workers.alone.load().ranks is msgspec.UNSET
    assert [rank.kv_capacity_tokens for rank in ranks] == [workers.alone.load().kv_capacity_tokens] * RANKS
    assert load.kv_capacity_tokens == sum(rank.kv_capacity_tokens or 0 for rank in ranks)
    assert load.work is not None
    assert load.work.prompts == sum(rank.work.prompts for rank in ranks if rank.work is not None)
    assert load.speed is not None, "measured with all ranks at work"
    assert load.speed.prefill_b > 0


def test_each_pair_of_ranks_hands_over(workers: Workers) -> None:
    before = settled(workers.decode)
    for number, ranks in enumerate(((0, 0), (0, 1), (1, 0), (1, 1)), start=20):
        assert legs(workers.prefill, workers.decode, number, ranks=ranks) == answer(workers.alone, number), ranks

    def pulled() -> list[int]:
        ranks = zip(before, reports(workers.decode), strict=True)
        return [
            new.transfers.pulled_tokens - old.transfers.pulled_tokens
            for old, new in ranks
            if old.transfers and new.transfers
        ]

    wait_until(
        lambda: all(tokens >= 2 * (PROMPT_TOKENS - 1) for tokens in pulled()),
        seconds=60,
        what=lambda: f"each rank has pulled two prompts: {pulled()}",
    )
    wait_until(lambda: workers.prefill.load().idle, seconds=60, what="both ranks give the blocks free")


def test_the_state_of_another_prompt_gives_other_tokens(workers: Workers) -> None:
    """What the tests above compare would show a wrong block."""
    wrong = legs(workers.prefill, workers.decode, 30, ranks=(1, 0), of=31)
    assert wrong != answer(workers.alone, 31)


def test_idle_ranks_leave_the_cores_alone(workers: Workers) -> None:
    """They run no dummy batches for each other, and wait for work asleep."""
    shares: list[float] = []
    while not shares or (shares[-1] > RANKS / 3 and len(shares) < 5):
        before, began = workers.prefill.cpu_seconds(), time.monotonic()
        time.sleep(3)  # a duration to measure over, not a wait for something
        shares.append((workers.prefill.cpu_seconds() - before) / (time.monotonic() - began))
    assert shares[-1] < RANKS / 3, shares


def test_a_flip_restarts_no_rank(workers: Workers) -> None:
    processes = {each.pid for agent in workers for each in agent.descendants()}
    for agent, role in ((workers.prefill, "decode"), (workers.decode, "prefill")):
        post_json(f"{agent.url}/role", {"role": role, "roleEpoch": 1})
    assert legs(workers.decode, workers.prefill, 40, ranks=(1, 0)) == answer(workers.alone, 40)
    assert {each.pid for agent in workers for each in agent.descendants()} == processes


def test_one_lost_rank_ends_the_group(workers: Workers) -> None:
    """Last: it ends a group."""
    processes = workers.decode.descendants()
    (lost,) = (each for each in processes if "EngineCore_DP1" in " ".join(each.cmdline()))
    os.kill(lost.pid, signal.SIGKILL)
    assert workers.decode.wait_exit(seconds=30) == EXIT_ENGINE_DIED, workers.decode.tail()
    assert "rank 1 was killed by SIGKILL; vLLM ended with exit code 1 while serving" in workers.decode.tail()
    wait_until(lambda: not alive(processes), seconds=30, what="the other rank dies, too")


def test_sigterm_drains_all_ranks_and_ends_well(workers: Workers) -> None:
    processes = workers.prefill.descendants()
    workers.prefill.process.send_signal(signal.SIGTERM)
    assert workers.prefill.wait_exit(seconds=60) == 0, workers.prefill.tail()
    assert "drain_ended outcome=idle" in workers.prefill.log.read_text(errors="replace")
    wait_until(lambda: not alive(processes), seconds=30, what="nothing is left")
