"""What is counted of a request is what its client was given, on every path."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Behave, Engine, MakeSite, Seen, eventually

from fulcrum.api.names import Role

BODY = {"model": "m", "prompt": "x", "max_tokens": 8}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}
TOOL = {"type": "function", "function": {"name": "f"}}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ERROR = '{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}'
ABORT = '{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}'
UNFOLLOWED: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, BODY | {"logprobs": 1}),
    (COMPLETIONS, BODY | {"n": 2}),
    (COMPLETIONS, BODY | {"response_format": {"type": "json_object"}}),
    (COMPLETIONS, BODY | {"return_token_ids": False}),
    (CHATS, CHAT | {"tools": [TOOL]}),
]
"""Requests whose streams cannot be resumed."""


def broken(how: str) -> Behave:
    """A stream that fails after its first token."""

    async def behave(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "prefill":
            return False
        await engine.head(writer)
        await engine.event(writer, '{"choices":[{"index":0,"text":"a","finish_reason":null}]}')
        await asyncio.sleep(0.02)  # a piece of its own
        if how in ("error", "abort"):
            await engine.event(writer, ERROR if how == "error" else ABORT)
            await engine.event(writer, "[DONE]")
        if how == "reset":
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")
        return True

    return behave


@pytest.mark.parametrize("how", ["error", "abort", "no end mark", "reset"])
@pytest.mark.parametrize(("path", "body"), UNFOLLOWED)
async def test_a_stream_that_fails_is_no_success(
    make_site: MakeSite, path: str, body: dict[str, Any], how: str
) -> None:
    site = await make_site(Engine("m", Role.MIXED, behave=broken(how)), slo_seconds=(60.0, 60.0))
    answer = await site.post(body | {"stream": True}, path)
    assert not answer.complete
    assert b'"text":"a"' in answer.body
    assert b'data: {"error":{' in answer.body
    assert b"[DONE]" not in answer.body
    assert await site.metric('fulcrum_gateway_requests_total{code="502"') == 1
    assert await site.metric("fulcrum_gateway_requests_total") == 1
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"') == 1
    assert await site.metric("fulcrum_gateway_slo_total") == 1
    assert await site.metric('fulcrum_gateway_legs_total{outcome="answered"') == 0


@pytest.mark.parametrize("how", ["reset", "no end mark"])
@pytest.mark.parametrize("before", ["", "long " * 200])
async def test_the_words_of_an_end_mark_in_a_text_end_nothing(make_site: MakeSite, before: str, how: str) -> None:
    async def says_done(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, f'{{"choices":[{{"index":0,"text":"{before}data: [DONE]","finish_reason":null}}]}}')
        await asyncio.sleep(0.02)  # a piece of its own
        if how == "reset":
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=says_done), slo_seconds=(60.0, 60.0))
    answer = await site.post(BODY | {"stream": True, "logprobs": 1})
    assert not answer.complete
    assert b'data: {"error":{' in answer.body
    assert await site.metric('fulcrum_gateway_requests_total{code="502"') == 1
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"') == 1


@pytest.mark.parametrize("first", [ERROR, ABORT, ABORT.replace('"text":""', '"delta":{"role":"assistant"}')])
@pytest.mark.parametrize(("path", "body"), UNFOLLOWED)
async def test_a_stream_that_is_given_up_before_its_first_token_is_made_by_another_worker(
    make_site: MakeSite, path: str, body: dict[str, Any], first: str
) -> None:
    """vLLM 0.33 says so in an event."""

    async def gives_up(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if engine.name != "bad":
            return False
        await engine.head(writer)
        await engine.event(writer, first)
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(*(Engine(name, Role.MIXED, behave=gives_up) for name in ("bad", "good")))
    while not site.engines["bad"].seen:
        answer = await site.post(body | {"stream": True}, path)
        assert answer.complete
        assert b"good0" in answer.body
    assert b'"error"' not in answer.body
    assert b"abort" not in answer.body
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"') == 0


@pytest.mark.parametrize("size", [10, 400_000])
async def test_an_aborted_answer_is_made_by_another_worker(make_site: MakeSite, size: int) -> None:
    async def gives_up(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        choice = {"index": 0, "text": '"finish_reason":"abort"' + "x" * size, "finish_reason": "stop"}
        if engine.name == "bad":
            choice["finish_reason"] = "abort"
        body = json.dumps({"choices": [choice]}, separators=(",", ":")).encode()
        writer.write(
            b"HTTP/1.1 200 X\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)
        )
        return True

    site = await make_site(*(Engine(name, Role.MIXED, behave=gives_up) for name in ("bad", "good")))
    for _ in range(6):
        answer = await site.post(BODY)
        assert (answer.status, answer.json()["choices"][0]["finish_reason"]) == (200, "stop")
    assert site.engines["bad"].seen
    site.gateway.registry.remove("good", "test")
    assert (await site.post(BODY)).status in (500, 502)


@pytest.mark.parametrize("followed", [True, False])
async def test_a_connection_that_breaks_behind_the_end_mark_took_nothing(make_site: MakeSite, followed: bool) -> None:
    async def breaks(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, '{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[1]}]}')
        await engine.event(writer, "[DONE]")
        await asyncio.sleep(0.05)  # what was written must have left
        writer.transport.abort()
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=breaks), slo_seconds=(60.0, 60.0))
    answer = await site.post(BODY | {"stream": True} | ({} if followed else {"logprobs": 1}))
    assert answer.complete
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert len(site.engines["m"].seen) == 1
    await eventually(lambda: site.gateway.metrics.requests[COMPLETIONS, 200, "", "default"] == 1)
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"') == 0


@pytest.mark.parametrize("header", ["x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"])
async def test_what_one_client_asks_for_is_no_miss_of_the_promise(make_site: MakeSite, header: str) -> None:
    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.02)  # the loop's clock counts milliseconds
        if not seen.body.get("stream"):
            return False
        await engine.head(writer)
        for number in range(3):
            await engine.event(writer, json.dumps({"choices": [{"text": str(number), "finish_reason": None}]}))
            await asyncio.sleep(0.02)
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=slow), slo_seconds=(60.0, 60.0))
    for stream in (False, True):
        assert (await site.post(BODY | {"stream": stream}, headers=f"{header}: 0.001\r\n")).status in (200, 429)
    assert await site.metric('fulcrum_gateway_slo_total{outcome="met"') == await site.metric(
        "fulcrum_gateway_slo_total"
    )
    asked = await site.metric("fulcrum_gateway_slo_asked_total")
    assert asked > await site.metric('fulcrum_gateway_slo_asked_total{outcome="met"'), "the stream was too late for it"


async def test_an_engine_that_always_tells_usage_is_passed_on_whole(make_site: MakeSite) -> None:
    async def forced(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, '{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[1]}]}')
        await engine.event(writer, '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}')
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=forced), config={"force_include_usage": True})
    assert b'"usage":{"prompt_tokens":3' in (await site.post(BODY | {"stream": True})).body
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 1


@pytest.mark.parametrize("behind", ["", "x" * 100_000], ids=["at the end", "before the prompt's token ids"])
@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
async def test_an_answer_of_any_size_is_charged_what_it_took(
    make_site: MakeSite, tmp_path: Path, size: int, behind: str
) -> None:
    async def long(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        top = {"usage": -0.5, '"usage":{"completion_tokens":1}': -1.0}
        choice = {"text": '"usage":{"completion_tokens":1}' + "x" * size, "logprobs": {"top_logprobs": [top]}}
        usage = {"prompt_tokens": 2, "total_tokens": 502, "completion_tokens": 500, "prompt_tokens_details": None}
        answer = {"choices": [choice], "usage": usage, "prompt_text": behind}
        body = json.dumps(answer, separators=(",", ":")).encode()
        writer.write(
            b"HTTP/1.1 200 X\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)
        )
        return True

    (tmp_path / "one").write_text(json.dumps({"key": "secret-one", "tokensPerMinute": 1_000_000}))
    site = await make_site(Engine("m", Role.MIXED, behave=long), config={"api_keys_directory": str(tmp_path)})
    (key,) = site.gateway.admission.keys.keys  # type: ignore[union-attr]
    full = key._allowance._tokens._left
    answer = await site.post(BODY | {"max_tokens": 600, "logprobs": 5}, headers="Authorization: Bearer secret-one\r\n")
    assert answer.status == 200
    assert round(full - key._allowance._tokens._left) == 502


async def test_an_answer_that_does_not_say_costs_what_was_expected(make_site: MakeSite, tmp_path: Path) -> None:
    async def silent(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 200, {"choices": [{"text": "x"}]})
        return True

    (tmp_path / "one").write_text(json.dumps({"key": "secret-one", "tokensPerMinute": 1_000_000}))
    site = await make_site(Engine("m", Role.MIXED, behave=silent), config={"api_keys_directory": str(tmp_path)})
    (key,) = site.gateway.admission.keys.keys  # type: ignore[union-attr]
    full = key._allowance._tokens._left
    assert (await site.post(BODY, headers="Authorization: Bearer secret-one\r\n")).status == 200
    assert round(full - key._allowance._tokens._left) >= 8


async def test_a_field_of_the_other_route_changes_no_limit(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED, tokens=600))
    answer = await site.post(BODY | {"max_tokens": 600, "max_completion_tokens": 1})
    assert answer.json()["usage"]["completion_tokens"] == 600
