"""Engines that answer `/v1/messages` and `/v1/responses` as vLLM does (test_response_models.py compares)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.gateway.conftest import KV, Engine, Seen

from fulcrum.api.names import Role

WORDS = ("Hel", "lo", " there")
PROMPT_TOKENS = 7
COUNTED = {"input_tokens": PROMPT_TOKENS, "context_management": {"original_input_tokens": PROMPT_TOKENS}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
TOOL = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}}


def kv_of(seen: Seen, name: str) -> dict[str, Any] | None:
    return {**KV, "from": name} if seen.leg == "prefill" else None


def message(seen: Seen, name: str) -> dict[str, Any]:
    """A message as vLLM's route writes it: without fields that are null."""
    made = 1 if seen.leg == "prefill" else len(WORDS)
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(WORDS[:made])}]
    if seen.body.get("tools"):
        content = [THOUGHT, TOOL]
    answer = {
        "id": "chatcmpl-" + seen.headers["x-request-id"], "type": "message", "role": "assistant", "content": content,
        "model": "m", "stop_reason": "max_tokens" if made == 1 else "end_turn",
        "usage": {"input_tokens": PROMPT_TOKENS - 2, "output_tokens": made, "cache_read_input_tokens": 2},
    }  # fmt: skip
    kv = kv_of(seen, name)
    return answer if kv is None else {**answer, "kv_transfer_params": kv}


def message_events(seen: Seen) -> list[dict[str, Any]]:
    """The events of a stream; each has its name as `type`."""
    start = {
        "id": "chatcmpl-" + seen.headers["x-request-id"], "type": "message", "role": "assistant", "content": [],
        "model": "m", "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": 0},
    }  # fmt: skip
    blocks: list[dict[str, Any]]
    if seen.body.get("tools"):
        blocks = [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {**TOOL, "input": {}}},
            {
                "type": "content_block_delta", "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'},
            },
            {"type": "content_block_stop", "index": 1},
        ]  # fmt: skip
    else:
        blocks = [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
                for word in WORDS
            ),
            {"type": "content_block_stop", "index": 0},
        ]
    end = {
        "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": PROMPT_TOKENS - 2, "output_tokens": len(WORDS), "cache_read_input_tokens": 2},
    }  # fmt: skip
    return [{"type": "message_start", "message": start}, *blocks, end, {"type": "message_stop"}]


def response(seen: Seen, name: str, *, status: str | None = None) -> dict[str, Any]:
    """A response as vLLM's route writes it: it does not say whether it is stored."""
    made = 1 if seen.leg == "prefill" else len(WORDS)
    text = {"type": "output_text", "text": "".join(WORDS[:made]), "annotations": [], "logprobs": None}
    item = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": None, "content": [text],
    }  # fmt: skip
    nothing = dict.fromkeys(
        (
            "incomplete_details", "instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt",
            "reasoning", "text", "top_logprobs", "user", "ec_transfer_params", "input_messages", "output_messages",
        )
    )  # fmt: skip
    usage = {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {
            "cached_tokens": 2, "cache_write_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": [],
        },
        "output_tokens": made,
        "output_tokens_details": {
            "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": PROMPT_TOKENS + made,
    }  # fmt: skip
    return {
        **nothing,
        "id": seen.body.get("request_id", "resp_1"), "created_at": 1000, "model": "m", "object": "response",
        "output": [] if status else [item], "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto",
        "tools": [], "top_p": 1.0, "background": False, "max_output_tokens": 40, "service_tier": "auto",
        "status": status or ("incomplete" if made == 1 else "completed"), "truncation": "disabled",
        "usage": None if status else usage, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "kv_transfer_params": kv_of(seen, name),
    }  # fmt: skip


def response_events(seen: Seen, name: str) -> list[dict[str, Any]]:
    """The events of a stream; the first two come before the first token."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    begun = response(seen, name, status="in_progress")
    events: list[dict[str, Any]] = [
        {"response": begun, "type": "response.created"},
        {"response": begun, "type": "response.in_progress"},
        {"item": item, "output_index": 0, "type": "response.output_item.added"},
        {**at, "part": part, "type": "response.content_part.added"},
        *({**at, "delta": word, "logprobs": [], "type": "response.output_text.delta"} for word in WORDS),
        {**at, "text": "".join(WORDS), "logprobs": [], "type": "response.output_text.done"},
        {**at, "part": {**part, "text": "".join(WORDS)}, "type": "response.content_part.done"},
        {
            "item": response(seen, name)["output"][0], "output_index": 0, "type": "response.output_item.done",
        },
        {"response": response(seen, name), "type": "response.completed"},
    ]  # fmt: skip
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


class ApiEngine(Engine):
    """Answers both APIs. With `cut` its streams break after so many events: "reset", "end", "error"."""

    def __init__(self, name: str, role: Role, *, cut: int | None = None, how: str = "reset") -> None:
        super().__init__(name, role, behave=answer)
        self.cut = cut
        self.how = how


async def answer(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    assert isinstance(engine, ApiEngine)
    if seen.path == "/v1/messages/count_tokens":
        await engine.send(writer, 200, COUNTED)
    elif seen.path not in ("/v1/messages", "/v1/responses"):
        return False
    elif seen.body.get("stream"):
        await stream(engine, seen, writer)
    else:
        made = message(seen, engine.name) if seen.path == "/v1/messages" else response(seen, engine.name)
        await engine.send(writer, 200, made)
    return True


async def stream(engine: ApiEngine, seen: Seen, writer: asyncio.StreamWriter) -> None:
    events = message_events(seen) if seen.path == "/v1/messages" else response_events(seen, engine.name)
    await engine.head(writer)
    for number, event in enumerate(events):
        if number == engine.cut:
            await asyncio.sleep(0.02)  # what was written must have left
            if engine.how == "reset":
                writer.transport.abort()
                return
            if engine.how == "error":
                failed = {"type": "error", "error": {"type": "internal_error", "message": "EngineCore died"}}
                await named(writer, failed)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        await named(writer, event)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def named(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    data = f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()
