"""The same request through the gateway and to one engine alone: the token ids must be the same."""

from __future__ import annotations

import json
import random
import urllib.request
from dataclasses import dataclass
from typing import Any

from local_cluster import Cluster

PROMPT_WORDS = (3, 17, 120, 1100, 2200)
"""Below, and just above, one KV block; more than a thousand tokens; more than one prefill step."""
OUTPUT_TOKENS = 16
_TEXT = "river stone light paper window garden music winter train silver bread market letter island bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    token_ids: list[int]
    prompt_tokens: int
    prefill: str
    """Pods that served the two legs; empty when an engine was asked directly."""
    decode: str


def assert_completion_parity(cluster: Cluster, words: int, *, stream: bool) -> None:
    # Never the same prompt twice: a prefix that the decode engine has cached would not be moved.
    source = random.Random(f"{words} {stream}")
    prompt = " ".join(source.choices(_TEXT.split(), k=words))
    _assert_parity(cluster, "/v1/completions", {"prompt": prompt, "stream": stream}, moves_kv=words > 16)


def assert_chat_parity(cluster: Cluster, *, stream: bool) -> None:
    question = "Name three cities in Europe." if stream else "Write a sentence about the sea."
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": question}]
    _assert_parity(cluster, "/v1/chat/completions", {"messages": messages, "stream": stream}, moves_kv=True)


def _assert_parity(cluster: Cluster, path: str, body: dict[str, Any], *, moves_kv: bool) -> None:
    body = {
        **body,
        "model": cluster.name,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    before_bytes = cluster.kv_bytes_moved()
    two_engines = ask(cluster.endpoint() + path, body)
    assert len(two_engines.token_ids) == OUTPUT_TOKENS
    assert two_engines.decode not in {"", two_engines.prefill}
    if moves_kv:
        assert cluster.kv_bytes_moved() > before_bytes
    for worker in cluster.workers():
        one_engine = ask(f"http://{worker.ip}:8000{path}", body)
        assert one_engine.token_ids == two_engines.token_ids, f"{worker.name} alone against {two_engines}"
        assert one_engine.text == two_engines.text
        assert one_engine.prompt_tokens == two_engines.prompt_tokens


def ask(url: str, body: dict[str, Any]) -> Answer:
    """One answer, put together from its chunks when it is streamed."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        content = response.read().decode()
        headers = response.headers
    if body["stream"]:
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        events = [json.loads(line) for line in lines[:-1]]
    else:
        events = [json.loads(content)]
    prefill, _, decode = headers.get("x-fulcrum-path", "").partition(",")
    choices = [event["choices"][0] for event in events if event["choices"]]
    return Answer(
        text="".join(_text(choice) for choice in choices),
        token_ids=[token for choice in choices for token in choice.get("token_ids") or []],
        prompt_tokens=events[-1]["usage"]["prompt_tokens"],
        prefill=prefill,
        decode=decode,
    )


def _text(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""
