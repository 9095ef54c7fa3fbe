"""A model in vLLM's clothes: its next token is a function of all tokens before it, and its stream can be cut anywhere.

Tokens are the bytes of their text, so that half a character can be a token, and 3 is the end of text.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.gateway.conftest import Engine, Seen

from fulcrum.api.names import Role

END = 3
WORDS = ("a", "b", " c", "de", "é", "f.", "G", "日", " ")
CREATED = {"n": 1000}


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Token ids of the prompt in a request."""
    if "messages" in body:
        text = "".join(f"<{message['role']}>{message['content']}" for message in body["messages"]) + "<assistant>"
        return list(text.encode())
    prompt = body["prompt"]
    return list(prompt.encode()) if isinstance(prompt, str) else prompt


def next_id(ids: list[int]) -> int:
    """The greedy token after `ids`."""
    # Words are told byte by byte: what was begun is gone on with.
    tail = bytes(ids[-4:])
    for word in WORDS:
        raw = word.encode()
        for cut in range(len(raw) - 1, 0, -1):
            if len(raw) > 1 and raw[0] > 0x7F and tail.endswith(raw[:cut]) and tail[-1] > 0x7F:
                return raw[cut]
    digest = hashlib.sha256(bytes(ids)).digest()
    return END if digest[1] < 2 else WORDS[digest[0] % len(WORDS)].encode()[0]


def complete(raw: bytes) -> str:
    """Text of `raw` without half a character at its end."""
    for cut in range(4):
        try:
            return raw[: len(raw) - cut].decode()
        except UnicodeDecodeError:
            continue
    return raw.decode(errors="replace")


@dataclass(frozen=True)
class Output:
    """One event's worth."""

    text: str
    ids: list[int]
    finish: str | None = None
    stop: str | int | None = None


def logprobs_of(before: list[int], ids: list[int], most: int, *, offset: int) -> dict[str, list[Any]]:
    """Log probabilities of `ids` after `before`, of which `most` of each; `offset`: characters before them.

    As vLLM's `_create_completion_logprobs` writes them (tests/worker_image/test_logprobs.py compares).
    """
    steps = [alternatives([*before, *ids[:number]], most) for number in range(len(ids))]
    tokens = [own_text([*before, *ids[:number]], token) for number, token in enumerate(ids)]
    return {
        "text_offset": [offset + sum(map(len, tokens[:number])) for number in range(len(ids))],
        "token_logprobs": [step[token] for step, token in zip(steps, ids, strict=True)],
        "tokens": tokens,
        "top_logprobs": [
            {own_text([*before, *ids[:number]], token): value for token, value in step.items()}
            for number, step in enumerate(steps)
        ],
    }


def alternatives(ids: list[int], most: int) -> dict[int, float]:
    """The likeliest tokens after `ids`, the greedy one first, with their log probabilities."""
    likeliest, digest = next_id(ids), hashlib.sha256(bytes([*ids, 0])).digest()
    found = dict.fromkeys([likeliest, *(WORDS[byte % len(WORDS)].encode()[0] for byte in digest)])
    return {token: -(number + digest[0] / 256) for number, token in enumerate([*found][: max(most, 1)])}


def own_text(before: list[int], token: int) -> str:
    """Text of a token: that of a character belongs to its last byte."""
    return complete(bytes([*before, token]))[len(complete(bytes(before))) :]


def generate(body: dict[str, Any], *, per_event: int = 1) -> list[Output]:
    """All events of an answer."""
    ids = prompt_of(body)
    start = len(ids)
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 40
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    kept = bool(body.get("include_stop_str_in_output"))
    held = max((len(stop) for stop in stops), default=1) - 1 if stops and not kept else 0
    outputs: list[Output] = []
    given = 0
    batch: list[int] = []
    while True:
        token = next_id(ids)
        ids.append(token)
        batch.append(token)
        made = len(ids) - start
        finish: str | None = None
        reason: str | int | None = None
        raw = bytes(ids[start:])
        if token == END and not body.get("ignore_eos") and made > body.get("min_tokens", 0):
            finish, raw = "stop", raw[:-1]
        elif made >= most:
            finish = "length"
        text = complete(raw.replace(bytes([END]), b""))
        for stop in stops:
            at = text.find(stop)
            if at >= 0 and made > body.get("min_tokens", 0):
                text = text[: at + len(stop) if kept else at]
                finish, reason = "stop", stop
        if finish or len(batch) >= per_event:
            end = len(text) if finish else max(len(text) - held, given)
            outputs.append(Output(text[given:end], batch, finish, reason))
            given, batch = end, []
        if finish:
            return outputs


@dataclass
class Cut:
    """How a stream is broken off after `events` events with tokens: "reset", "eof", "end", "stall", "error", "half"."""

    events: int
    how: str


class Model(Engine):
    """An engine that answers by the model; `cuts` are used up one by one, one for each stream."""

    def __init__(self, name: str, role: Role, *, per_event: int = 1, **options: Any) -> None:
        super().__init__(name, role, **options)
        self.behave = answer
        self.per_event = per_event
        self.cuts: list[Cut] = []
        self.twist: Callable[[dict[str, Any]], None] = lambda _body: None
        self.token_ids = True


async def answer(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    assert isinstance(engine, Model)
    body = seen.read
    CREATED["n"] += 1
    if seen.path == "/tokenize":
        await engine.send(writer, 200, {"tokens": list(body["prompt"].encode()), "count": 0, "max_model_len": 1})
        return True
    engine.twist(seen.body)
    body = seen.read
    if body.get("stream"):
        await stream(engine, seen, writer)
        return True
    (last, *_) = reversed(outputs := generate(body))
    choice: dict[str, Any] = {"text": "".join(each.text for each in outputs), "finish_reason": last.finish}
    extra: dict[str, Any] = {"usage": usage(len(prompt_of(body)), sum(len(each.ids) for each in outputs))}
    if body.get("return_token_ids"):
        (extra if "messages" in body else choice)["prompt_token_ids"] = prompt_of(body)
    await engine.whole(seen, writer, choices=[choice], **extra)
    return True


async def stream(engine: Model, seen: Seen, writer: asyncio.StreamWriter) -> None:
    body = seen.read
    chat = "messages" in body
    cut = engine.cuts.pop(0) if engine.cuts else None
    tells = engine.token_ids and bool(body.get("return_token_ids"))
    options = body.get("stream_options") or {}
    prompt = prompt_of(body)
    base = {
        "id": ("chatcmpl-" if chat else "cmpl-") + seen.headers["x-request-id"],
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": CREATED["n"],
        "model": "m",
    }
    await engine.head(writer)
    if chat:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        first = {**base, "choices": [role], "prompt_token_ids": prompt if tells else None, "prompt_text": None}
        await event(engine, writer, first)
    made = offset = 0
    so_far = list(prompt)
    for number, output in enumerate(generate(body, per_event=engine.per_event)):
        if cut is not None and number == cut.events and await broke(engine, cut, writer):
            return
        made += len(output.ids)
        choice: dict[str, Any] = {"index": 0}
        if chat:
            choice["delta"] = {"content": output.text}
        else:
            choice["text"] = output.text
        choice |= {"logprobs": None, "finish_reason": output.finish}
        if not chat and body.get("logprobs") is not None:
            choice["logprobs"] = logprobs_of(so_far, output.ids, body["logprobs"], offset=offset)
            offset += sum(map(len, choice["logprobs"]["tokens"]))
            so_far += output.ids
        if not chat or output.finish:
            choice["stop_reason"] = output.stop
        if not chat:
            choice["prompt_token_ids"] = prompt if tells and number == 0 else None
        choice["token_ids"] = output.ids if tells else None
        whole: dict[str, Any] = {**base, "choices": [choice]}
        if options.get("continuous_usage_stats"):
            whole["usage"] = usage(len(prompt), made)
        await event(engine, writer, whole)
        if cut is not None and cut.events < 0 and output.finish and await broke(engine, cut, writer):
            return
    if options.get("include_usage"):
        await event(engine, writer, {**base, "choices": [], "usage": usage(len(prompt), made)})
    await engine.event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def usage(prompt: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}


async def event(engine: Engine, writer: asyncio.StreamWriter, content: object) -> None:
    await engine.event(writer, json.dumps(content, separators=(",", ":")))


async def broke(engine: Engine, cut: Cut, writer: asyncio.StreamWriter) -> bool:
    """Break off a stream."""
    if cut.how == "reset":
        await asyncio.sleep(0.01)  # what was written must have left
        writer.transport.abort()
    elif cut.how == "eof":
        writer.transport.close()
    elif cut.how == "end":
        writer.write(b"0\r\n\r\n")
    elif cut.how == "half":
        writer.write(b'40\r\ndata: {"id":"cmpl-x","choices":[{"ind')
        await writer.drain()
        writer.transport.close()
    elif cut.how == "refuse":
        await asyncio.sleep(0.05)  # a piece of its own
        await engine.event(writer, '{"error": {"message": "your fault", "type": "BadRequestError", "code": 400}}')
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
    elif cut.how == "error":
        await engine.event(writer, '{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}')
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
    else:
        await asyncio.sleep(3600)
    return True
