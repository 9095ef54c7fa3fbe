"""Two real engines under two agents: what the worker's contract says, on the real thing."""

from __future__ import annotations

import heapq
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.machine import deadline_seconds
from tests.worker_image.agents import (
    DECIDED_NATS,
    REMOTE_DECODE,
    Agent,
    alive,
    post_json,
    prepared_model,
    start_agent,
    wait_until,
    worker_config,
)

from fulcrum.api.names import Role
from fulcrum.api.worker import EXIT_ENGINE_DIED, WorkCounters

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

PROMPT = ", ".join(str(number) for number in range(1, 90))
TOLD_TOKENS = 1500
"""Of an answer that is still being made when its worker is told to go: seconds on a quick machine."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both engines keep what they compile."""
    folder: Path = tmp_path_factory.mktemp("compiled")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Iterator[tuple[Agent, Agent]]:
    """Two ready workers. The last tests of this file end one each."""
    prepared_model()
    folder: Path = tmp_path_factory.mktemp("agents")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        yield from started(folder)


def started(folder: Path) -> Iterator[tuple[Agent, Agent]]:
    agents = [start_agent(folder, worker_config(role=Role.PREFILL), name="chat-cpu-0")]
    agents.append(start_agent(folder, worker_config(role=Role.DECODE, role_epoch=7), name="chat-cpu-1"))
    try:
        for agent in agents:
            agent.wait_ready()
        yield agents[0], agents[1]
    finally:
        for agent in agents:
            agent.kill()


def test_a_ready_worker_reports_what_it_knows(pair: tuple[Agent, Agent]) -> None:
    prefill, decode = pair
    report = prefill.load()
    assert (report.role, report.role_epoch, report.ready, report.draining) == (Role.PREFILL, 0, True, False)
    assert (decode.load().role, decode.load().role_epoch) == (Role.DECODE, 7)
    assert report.idle
    assert report.queued_prompt_tokens == 0
    assert report.kv_capacity_tokens is not None
    assert 20_000 < report.kv_capacity_tokens < 30_000, "16 MiB of FP8 KV for 2 layers of 3 heads of 64"
    assert prefill.get("/healthz")[0] == 200


def test_the_engine_process_is_a_copy_of_its_server_as_it_was(pair: tuple[Agent, Agent]) -> None:
    """It has a name, and the fork server between both."""
    for agent in pair:
        (engine,) = (each for each in agent.descendants() if "EngineCore" in " ".join(each.cmdline()))
        fork_server = engine.parent()
        assert fork_server is not None
        server = fork_server.parent()
        assert server is not None
        assert server.cmdline() == fork_server.cmdline()
        assert server.ppid() == agent.process.pid


def test_the_engine_was_measured(pair: tuple[Agent, Agent]) -> None:
    for agent in pair:
        speed = agent.load().speed
        assert speed is not None, agent.tail()
        coefficients = msgspec.structs.astuple(speed)[:6]
        assert all(value >= 0 for value in coefficients)
        prefill_seconds = speed.prefill_a + speed.prefill_b * 500 + speed.prefill_c * 500**2
        decode_seconds = speed.decode_a + speed.decode_b * 4 + speed.decode_c * 400
        assert 0 < prefill_seconds < deadline_seconds(30), coefficients
        assert 0 < decode_seconds < deadline_seconds(5), coefficients


def test_an_idle_worker_leaves_the_cores_alone(pair: tuple[Agent, Agent]) -> None:
    """NIXL's progress thread would otherwise keep one core per engine busy."""
    for agent in pair:
        shares = []
        while not shares or (shares[-1] > 1 / 3 and len(shares) < 5):  # once is enough: the thread would never rest
            before, began = agent.cpu_seconds(), time.monotonic()
            time.sleep(3)  # a duration to measure over, not a wait for something
            shares.append((agent.cpu_seconds() - before) / (time.monotonic() - began))
        assert shares[-1] < 1 / 3, shares


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 0},
        {"logprobs": 3, "temperature": 1.0, "n": 3},
        {"prompt_logprobs": 1},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "seed": 1},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "min_tokens": 4},
        {"logit_bias": {"20": 5.0}, "bad_words": ["nine"], "allowed_token_ids": [20, 21, 22]},
        {"structured_outputs": {"regex": "[a-z]+"}},
    ],
    ids="-".join,
)
def test_no_request_waits_for_a_compiler(pair: tuple[Agent, Agent], compiled: Path, asked: dict[str, Any]) -> None:
    """Where cores are busy a compiler takes longer than an engine with work may stand still."""
    answer = pair[0].complete(PROMPT, max_tokens=8, **asked)
    assert answer["choices"][0]["text"]
    assert not [each for each in compiled.rglob("*") if each.is_file()]


def test_metrics_follow_the_role(pair: tuple[Agent, Agent]) -> None:
    _, decode = pair
    assert post_json(f"{decode.url}/role", {"role": "prefill", "roleEpoch": 8}) == {"role": "prefill", "roleEpoch": 8}
    status, page = decode.get("/metrics")
    assert status == 200
    assert 'fulcrum_worker_role{role="prefill"} 1.0' in page
    assert 'fulcrum_worker_role{role="decode"} 0.0' in page
    assert "fulcrum_worker_role_epoch 8.0" in page
    assert "fulcrum_worker_engine_up 1.0" in page
    assert 'fulcrum_worker_speed_coefficient_seconds{coefficient="prefill_b"}' in page
    with pytest.raises(urllib.error.HTTPError) as refused:
        post_json(f"{decode.url}/role", {"role": "decode", "roleEpoch": 7})
    with refused.value:
        assert refused.value.code == 409
    post_json(f"{decode.url}/role", {"role": "decode", "roleEpoch": 9})


def test_two_legs_give_the_tokens_of_one_engine(pair: tuple[Agent, Agent]) -> None:
    prefill, decode = pair
    # Asked of the prefill engine: in the decode engine's prefix cache it would leave nothing to move.
    prompt, expected = decided_prompt(prefill)
    moved_before = decode.engine_metric("vllm:nixl_bytes_transferred_sum")
    first = prefill.complete(prompt, max_tokens=1, request_id="two-legs", kv_transfer_params=REMOTE_DECODE)
    wait_until(lambda: (prefill.load().kv_held_for_peers or 0) > 0, seconds=60, what="the blocks are held for the peer")
    held = prefill.load()
    assert (held.running, held.waiting) == (0, 0)
    assert held.kv_held_for_peers is not None
    assert held.kv_held_for_peers > 0
    assert not held.idle
    second = decode.complete(
        prompt, max_tokens=32, request_id="two-legs", kv_transfer_params=first["kv_transfer_params"], priority=-5,
        logprobs=0,
    )  # fmt: skip
    assert second["choices"][0]["logprobs"]["tokens"][: len(expected)] == expected
    assert decode.engine_metric("vllm:nixl_bytes_transferred_sum") > moved_before
    wait_until(lambda: prefill.load().idle, seconds=60, what="the prefill worker gives the blocks free")


def decided_prompt(engine: Agent) -> tuple[str, list[str]]:
    """Return a prompt, and at least eight tokens of its answer that rounding cannot change."""
    for number in range(20):
        prompt = f"{number}: {PROMPT}"
        tokens = decided_tokens(engine.complete(prompt, max_tokens=32, logprobs=2))
        if len(tokens) >= 8:
            return prompt, tokens
    raise AssertionError("no answer of 20 is sure of eight tokens")


def decided_tokens(answer: Any) -> list[str]:
    """The tokens up to the first that led by so little that rounding may choose another."""
    found = answer["choices"][0]["logprobs"]
    tokens = []
    for token, likeliest in zip(found["tokens"], found["top_logprobs"], strict=True):
        first, second = heapq.nlargest(2, likeliest.values())
        if first - second < DECIDED_NATS:
            break
        tokens.append(token)
    return tokens


def test_work_is_counted_where_it_is_done(pair: tuple[Agent, Agent]) -> None:
    prefill, decode = pair
    before = [_work(agent) for agent in pair]
    assert before[0].prompts > 0, "the measurement at start is in the counters from the start"
    text = "Ships kept watch for the light on nights without a moon. " * 10
    first = prefill.complete(text, max_tokens=1, request_id="counted", kv_transfer_params=REMOTE_DECODE)
    prompt_tokens = first["usage"]["prompt_tokens"]
    decode.complete(
        text, max_tokens=16, ignore_eos=True, request_id="counted", kv_transfer_params=first["kv_transfer_params"]
    )
    prefill.complete(text, max_tokens=1)  # its whole blocks are cached by now
    wait_until(lambda: _work(prefill).prompts == before[0].prompts + 2, seconds=60, what="both prompts are counted")
    wait_until(lambda: _work(decode).prompts == before[1].prompts + 1, seconds=60, what="the answer is counted")
    prefilled, decoded = (_work(agent) for agent in pair)
    assert prefilled.prompt_tokens - before[0].prompt_tokens == 2 * prompt_tokens
    assert prompt_tokens - 32 <= prefilled.cached_tokens - before[0].cached_tokens < prompt_tokens
    assert prefilled.decode_tokens == before[0].decode_tokens, "one token each: none came after it"
    assert 0 < prefilled.prefill_seconds - before[0].prefill_seconds < deadline_seconds(30)
    assert decoded.decode_tokens - before[1].decode_tokens == 15
    # vLLM 0.32.0 counts what the peer computed as computed, although it took the time of one step; but not by source.
    assert decoded.prompt_tokens - before[1].prompt_tokens == prompt_tokens
    assert decoded.cached_tokens == before[1].cached_tokens
    assert decoded.computed_tokens == before[1].computed_tokens is not None
    assert prefilled.computed_tokens is not None
    assert before[0].computed_tokens is not None
    computed = 2 * prompt_tokens - (prefilled.cached_tokens - before[0].cached_tokens)
    assert prefilled.computed_tokens - before[0].computed_tokens == computed
    assert decoded.prefill_seconds - before[1].prefill_seconds < deadline_seconds(30)
    assert 0 < decoded.decode_seconds - before[1].decode_seconds < deadline_seconds(30)
    assert prefill.load().max_batch == 128, "what vLLM 0.32.0 takes on a CPU"
    assert prefill.load().max_batched_tokens == 2048


def _work(agent: Agent) -> WorkCounters:
    time.sleep(0.3)  # reports are at most 0.25 s old
    work = agent.load().work
    assert work is not None, agent.tail()
    return work


def test_a_draining_worker_stays_ready_and_says_so(pair: tuple[Agent, Agent]) -> None:
    _, decode = pair
    assert post_json(f"{decode.url}/drain", {})["draining"] is True
    assert decode.load().draining
    status, body = decode.get("/readyz")
    assert status == 200
    assert '"draining":true' in body
    post_json(f"{decode.url}/role", {"role": "decode", "roleEpoch": 10})
    assert not decode.load().draining


def test_sigterm_lets_a_running_request_finish(pair: tuple[Agent, Agent]) -> None:
    prefill, _ = pair
    processes = prefill.descendants()
    answers: list[Any] = []
    client = threading.Thread(
        target=lambda: answers.append(prefill.complete("Once upon a time", max_tokens=TOLD_TOKENS, ignore_eos=True))
    )
    client.start()
    wait_until(lambda: prefill.load().running == 1, seconds=60, what="the request runs")
    prefill.process.send_signal(signal.SIGTERM)
    wait_until(lambda: prefill.load().draining, seconds=60, what="the agent drains")
    client.join(deadline_seconds(120))
    assert answers, prefill.tail()
    assert answers[0]["usage"]["completion_tokens"] == TOLD_TOKENS
    assert answers[0]["choices"][0]["finish_reason"] == "length"
    assert prefill.wait_exit(seconds=120) == 0
    assert "drain_ended outcome=idle" in prefill.tail(200)
    wait_until(lambda: not alive(processes), seconds=60, what="vLLM's processes are gone")


def test_a_killed_vllm_ends_the_agent_and_leaves_nothing(pair: tuple[Agent, Agent]) -> None:
    _, decode = pair
    processes = decode.descendants()
    api_server = next(process for process in processes if process.ppid() == decode.process.pid)
    assert len(processes) >= 2, "vLLM has an engine process besides its API server"
    api_server.kill()
    assert decode.wait_exit(seconds=60) == EXIT_ENGINE_DIED
    log = decode.log.read_text(errors="replace")
    said, heading, last_words = log.rpartition("vLLM was killed by SIGKILL while serving; its last lines:\n")
    assert heading in log[-2048:], "fits into a termination message"
    last_line = [line for line in said.splitlines() if line.startswith("(APIServer pid=")][-1]
    assert last_line.partition("] ")[2][:100] in last_words, "what vLLM said last"
    wait_until(lambda: not alive(processes), seconds=60, what="vLLM's engine process dies with its parent")
