"""The same request through the gateway and to one engine alone: the token ids must be the same."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from answers import margin, min_margin
from local_cluster import Cluster, Worker
from tests.machine import deadline_seconds

PROMPT_WORDS = (5, 20, 120, 1100, 2200)
"""Less than one KV block, more than one, more than a thousand tokens, and more than one prefill step."""
SHORT_PROMPT_WORDS = (20, 300)
"""For the real model in float32 on a core without AVX-512, which needs 6 ms for each token of a prompt."""
OUTPUT_TOKENS = (16, 8, 4)
"""Tried in this order: the fewer, the likelier is each of them clearly ahead of the next best."""
_WORDS = ("river", "stone", "light", "paper", "window", "garden", "music", "winter", "train", "silver", "bread")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    token_ids: list[int]
    prompt_tokens: int
    output_tokens: int
    prefill: str
    """Pods that served the two legs; empty when an engine was asked directly."""
    decode: str


def assert_completion_parity(cluster: Cluster, words: int, *, stream: bool, model: str = "") -> None:
    """`model`: a LoRA adapter; empty: the model itself."""
    path = "/v1/completions"
    for tokens, start in itertools.product(OUTPUT_TOKENS, range(len(_WORDS))):
        cycle = _WORDS[start:] + _WORDS[:start] if words > 16 else tuple(_LETTERS[start:])
        prompt = " ".join((cycle * (words // len(cycle) + 1))[:words])
        body = {"model": model or cluster.name, "prompt": prompt, "ignore_eos": True, "max_tokens": tokens}
        if _assert_parity(cluster, path, body, stream=stream, moves_kv=words > 16):
            return
    raise AssertionError("every prompt has a greedy step that rounding may change")


def assert_chat_parity(cluster: Cluster, *, stream: bool) -> None:
    path = "/v1/chat/completions"
    countries = ("Japan", "France", "Italy", "Spain", "Germany", "China")
    for tokens, country in itertools.product(OUTPUT_TOKENS, countries):
        messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
        body = {"messages": messages, "max_tokens": tokens}
        if _assert_parity(cluster, path, body, stream=stream, moves_kv=True):
            return
    raise AssertionError("every question has a greedy step that rounding may change")


def _assert_parity(cluster: Cluster, path: str, body: dict[str, Any], *, stream: bool, moves_kv: bool) -> bool:
    """False when one engine alone is nearly undecided at some step, so that the prompt says nothing."""
    body = {
        "model": cluster.name,
        **body,
        "temperature": 0,
        "return_token_ids": True,
    }
    engine = cluster.workers()[0]
    one_engine = _alone(cluster, engine, path, json.dumps(body))
    if one_engine is None:
        return False
    # The salt keeps the engines from reusing the KV of one way for the other: it would not be moved, nor computed.
    salt = f"{cluster.name} {time.monotonic_ns()}"
    body |= {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    # Speeds that were measured while all engines started at once may be far too slow. Who is then predicted to be late
    # goes to one worker whole; every answer puts them right.
    deadline = time.monotonic() + deadline_seconds(180)
    for number in itertools.count():
        before_bytes = cluster.kv_bytes_moved()
        two_engines = ask(cluster.endpoint() + path, {**body, "cache_salt": f"{salt} together {number}"})
        if two_engines.decode not in {"", two_engines.prefill}:
            break
        assert time.monotonic() < deadline, "no request is split"
    assert cluster.kv_bytes_moved() > before_bytes or not moves_kv
    assert len(two_engines.token_ids) == (body["max_tokens"] if "ignore_eos" in body else one_engine.output_tokens)
    assert two_engines.token_ids == one_engine.token_ids, f"{engine.name} alone: {one_engine}, both: {two_engines}"
    assert two_engines.text == one_engine.text
    assert two_engines.prompt_tokens == one_engine.prompt_tokens
    return True


@cache
def _alone(cluster: Cluster, engine: Worker, path: str, body: str) -> Answer | None:
    """What one engine alone answers to this JSON; None when it is nearly undecided at some step.

    It is asked once, for whole and for streamed answers: a long prompt takes a slow CPU many seconds.
    """
    asked = {**json.loads(body), "cache_salt": f"alone {time.monotonic_ns()}"}
    chat = "messages" in asked
    done = cluster.ask_engine(
        path, asked | ({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}), of=engine
    )
    logprobs = done["choices"][0]["logprobs"]
    if chat:
        steps = [[top["logprob"] for top in step["top_logprobs"]] for step in logprobs["content"]]
    else:
        steps = [list(step.values()) for step in logprobs["top_logprobs"]]
    return _answer([done], path="") if all(margin(step) >= min_margin(cluster) for step in steps) else None


def ask(url: str, body: dict[str, Any]) -> Answer:
    """One answer, put together from its chunks when it is streamed."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
        content = response.read().decode()
        path = response.headers.get("x-fulcrum-path", "")
    if not body["stream"]:
        return _answer([json.loads(content)], path=path)
    lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return _answer([json.loads(line) for line in lines[:-1]], path=path)


def _answer(events: Sequence[Any], *, path: str) -> Answer:
    prefill, _, decode = path.partition(",")
    choices = [event["choices"][0] for event in events if event["choices"]]
    return Answer(
        text="".join(_text(choice) for choice in choices),
        token_ids=[token for choice in choices for token in choice.get("token_ids") or []],
        prompt_tokens=events[-1]["usage"]["prompt_tokens"],
        output_tokens=events[-1]["usage"]["completion_tokens"],
        prefill=prefill,
        decode=decode,
    )


def _text(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""
