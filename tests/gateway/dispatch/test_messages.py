"""Anthropic's Messages over two legs, with Anthropic's own client, unmodified."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.gateway.apis import ApiEngine
from tests.gateway.conftest import Answered, Engine, MakeSite, Site

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass

PATH = "/v1/messages"
HI: Any = [{"role": "user", "content": "hi"}]
ClientOf = Callable[..., anthropic.AsyncAnthropic]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 40, "messages": HI}
TOOLS: Any = [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]


def pair(cut: int | None = None, how: str = "reset") -> tuple[ApiEngine, ApiEngine]:
    return ApiEngine("p", Role.PREFILL), ApiEngine("d", Role.DECODE, cut=cut, how=how)


@pytest.fixture
async def client_of() -> AsyncIterator[ClientOf]:
    """Makes clients of a site."""
    made: list[anthropic.AsyncAnthropic] = []

    def make(site: Site, key: str = "x") -> anthropic.AsyncAnthropic:
        url = f"http://127.0.0.1:{site.gateway.port}"
        made.append(anthropic.AsyncAnthropic(base_url=url, api_key=key, auth_token=None, max_retries=0))
        return made[-1]

    yield make
    for client in made:
        await client.close()


def error_of(answer: Answered) -> dict[str, Any]:
    read = answer.json()
    assert read["type"] == "error"
    error: dict[str, Any] = read["error"]
    return error


async def test_two_legs(make_site: MakeSite, client_of: ClientOf) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    answer = await client_of(site).messages.create(model="m", max_tokens=40, messages=HI, system="be brief")
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "Hello there"
    (first,), (second,) = prefill.seen, decode.seen
    assert (first.leg, second.leg) == ("prefill", "decode")
    assert (first.body["max_tokens"], second.body["max_tokens"]) == (1, 40)
    assert first.body["system"] == second.body["system"] == "be brief"
    assert second.body["kv_transfer_params"]["from"] == "p"
    assert first.headers["x-request-id"] == second.headers["x-request-id"]
    assert "x-api-key" not in first.headers
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{PATH}",code="200"}}') == 1
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 7, "those that were cached, too"
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3


async def test_a_stream(make_site: MakeSite, client_of: ClientOf) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    async with client_of(site).messages.stream(model="m", max_tokens=40, messages=HI) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert texts == ["Hel", "lo", " there"]
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 3)
    assert prefill.seen[0].body["stream"] is False
    assert "stream_options" not in decode.seen[0].body
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3
    assert await site.metric("fulcrum_gateway_time_to_first_token_seconds_count") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_and_tools_pass_through_both_legs(
    make_site: MakeSite, client_of: ClientOf, stream: bool
) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    turns: Any = [
        *HI,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"image_url": "http://127.0.0.1/x"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "5"}]},
    ]
    asked: Any = {
        "model": "m", "max_tokens": 4000, "messages": turns, "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled", "budget_tokens": 2000},
    }  # fmt: skip
    if stream:
        async with client_of(site).messages.stream(**asked) as events:
            final = await events.get_final_message()
    else:
        final = await client_of(site).messages.create(**asked)
    thought, tool = final.content
    assert (thought.type, thought.thinking) == ("thinking", "hm")
    assert (tool.type, tool.name, tool.input) == ("tool_use", "f", {"a": 1})
    for seen in (*prefill.seen, *decode.seen):
        assert (seen.body["messages"], seen.body["tools"]) == (turns, TOOLS)
        assert seen.body["thinking"]["budget_tokens"] == 2000


@pytest.mark.parametrize("how", ["reset", "end", "error"])
async def test_a_cut_stream_ends_with_an_error_event_and_counts_as_failed(
    make_site: MakeSite, client_of: ClientOf, how: str
) -> None:
    site = await make_site(*pair(4, how))
    answer = await site.post({**BODY, "stream": True}, PATH)
    assert not answer.complete
    name, _, data = answer.body.decode().rstrip("\n").split("\n\n")[-1].partition("\ndata: ")
    assert name == "event: error"
    assert json.loads(data)["type"] == "error"
    assert json.loads(data)["error"]["type"] == "api_error"
    assert b"message_stop" not in answer.body
    assert b"EngineCore" not in answer.body
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{PATH}",reason="UpstreamFailed"}}') == 1
    site = await make_site(*pair(4, how))  # a worker that was lost is avoided
    with pytest.raises(anthropic.APIStatusError, match="no other can go on"):
        async with client_of(site).messages.stream(model="m", max_tokens=40, messages=HI) as stream:
            await stream.get_final_message()


async def test_an_engine_that_fails_at_once_is_replaced(make_site: MakeSite) -> None:
    broken, good = ApiEngine("a", Role.MIXED, cut=0, how="error"), ApiEngine("b", Role.MIXED)
    site = await make_site(broken, good)
    for _ in range(3):
        answer = await site.post({**BODY, "stream": True}, PATH)
        assert answer.complete
        assert b"message_stop" in answer.body
    assert broken.seen


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_its_engine_gave_up_is_none(make_site: MakeSite, stream: bool) -> None:
    async def gives_up(engine: Engine, seen: Any, writer: Any) -> bool:
        whole = {"id": "x", "type": "message", "role": "assistant", "content": [], "model": "m"}
        await engine.send(writer, 200, whole)
        return True

    engine = ApiEngine("m", Role.MIXED)
    engine.behave = gives_up
    site = await make_site(engine)
    assert (await site.post({**BODY, "stream": stream}, PATH)).status == 502


@pytest.mark.parametrize(
    ("more", "status", "kind"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"max_tokens": 1 << 25}, 400, "invalid_request_error"),
        ({"stream": "yes"}, 400, "invalid_request_error"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "invalid_request_error"),
        ({"kv_transfer_params": {"a": 1}}, 400, "invalid_request_error"),
        ({"vllm_xargs": {"a": 1}}, 400, "invalid_request_error"),
        ({"model": "other"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
    ],
)
async def test_what_is_refused_reaches_no_engine(
    make_site: MakeSite, more: dict[str, Any], status: int, kind: str
) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    answer = await site.post({**BODY, **more}, PATH)
    assert (answer.status, error_of(answer)["type"]) == (status, kind)
    assert prefill.seen == decode.seen == []


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x"}}


@pytest.mark.parametrize(
    "block", [IMAGE, {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}], ids=["image", "tool result"]
)
@pytest.mark.parametrize("path", [PATH, PATH + "/count_tokens"])
async def test_urls_of_images_need_leave(make_site: MakeSite, block: dict[str, Any], path: str) -> None:
    engine = ApiEngine("m", Role.MIXED)
    body = {**BODY, "messages": [{"role": "user", "content": [block]}]}
    site = await make_site(engine)
    escaped = json.dumps(body).replace("source", "s\\u006furce").encode()
    for each in (body, escaped):
        assert error_of(await site.post(each, path))["type"] == "invalid_request_error"
    assert engine.seen == []
    site = await make_site(ApiEngine("n", Role.MIXED), config={"media_domains": ("example.com",)})
    assert (await site.post(body, path)).status == 200


async def test_images_that_come_along_are_taken(make_site: MakeSite) -> None:
    site = await make_site(ApiEngine("m", Role.MIXED))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    assert (await site.post({**BODY, "messages": [{"role": "user", "content": [image]}]}, PATH)).status == 200


@pytest.mark.parametrize("body", [{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, {}])
async def test_an_engines_errors_get_the_form_of_the_api(make_site: MakeSite, body: dict[str, Any]) -> None:
    async def refuse(engine: Engine, seen: Any, writer: Any) -> bool:
        await engine.send(writer, 400, body)
        return True

    engine = ApiEngine("m", Role.MIXED)
    engine.behave = refuse
    site = await make_site(engine)
    for path in (PATH, PATH + "/count_tokens"):
        error = error_of(await site.post(BODY, path))
        assert error["type"] == "invalid_request_error"
        assert error["message"] == (body["error"]["message"] if body else "The engine refused the request.")


async def test_count_tokens(make_site: MakeSite, client_of: ClientOf) -> None:
    site = await make_site(*pair())
    counted = await client_of(site).messages.count_tokens(model="m", messages=HI, tools=TOOLS)
    assert counted.input_tokens == 7
    with pytest.raises(anthropic.NotFoundError):
        await client_of(site).messages.count_tokens(model="other", messages=HI)


@pytest.mark.parametrize("more", [{}, {"model": None}])
@pytest.mark.parametrize("path", [PATH, PATH + "/count_tokens"])
async def test_the_only_model_is_meant_where_none_is_named(
    make_site: MakeSite, path: str, more: dict[str, Any]
) -> None:
    engine = ApiEngine("m", Role.MIXED)
    site = await make_site(engine)
    assert (await site.post({"max_tokens": 40, "messages": HI, **more}, path)).status == 200
    assert engine.seen[0].body["model"] == "m"


async def test_x_api_key_is_a_key(make_site: MakeSite, client_of: ClientOf, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("secret-one")
    site = await make_site(*pair(), config={"api_keys_directory": str(tmp_path)})
    assert (await client_of(site, "secret-one").messages.create(model="m", max_tokens=5, messages=HI)).usage
    with pytest.raises(anthropic.AuthenticationError) as refused:
        await client_of(site, "secret-two").messages.create(model="m", max_tokens=5, messages=HI)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["type"] == "authentication_error"
    for headers, status in (
        ("x-api-key: secret-one\r\n", 200),
        ("Authorization: Bearer secret-one\r\nx-api-key: other\r\n", 200),
        ("Authorization: Bearer other\r\nx-api-key: secret-one\r\n", 401),
        ("x-api-key: secret-one\r\nx-api-key: secret-one\r\n", 401),
        ("x-api-key: Bearer secret-one\r\n", 401),
    ):
        assert (await site.post(BODY, PATH, headers)).status == status, headers


async def test_overload_and_no_worker_are_errors_of_the_api(make_site: MakeSite, client_of: ClientOf) -> None:
    site = await make_site()
    with pytest.raises(anthropic.APIStatusError) as refused:
        await client_of(site).messages.create(model="m", max_tokens=5, messages=HI)
    assert refused.value.status_code == 503
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["type"] == "overloaded_error"


async def test_a_class_has_its_priority_at_the_engine(make_site: MakeSite) -> None:
    """vLLM has no field for it on this route, but reads a header."""
    classes = (
        QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
        QosClass(name="rest", priority=1),
    )
    prefill, decode = pair()
    site = await make_site(prefill, decode, config={"admission": Admission(classes=classes)})
    assert (await site.post(BODY, PATH, "x-tier: gold\r\nx-vllm-priority: -99\r\n")).status == 200
    assert prefill.seen[0].headers["x-vllm-priority"] == decode.seen[0].headers["x-vllm-priority"] == "-9"
