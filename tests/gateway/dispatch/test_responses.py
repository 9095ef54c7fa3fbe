"""OpenAI's Responses over two legs, with OpenAI's own client, unmodified: nothing is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from tests.gateway.apis import ApiEngine
from tests.gateway.conftest import Engine, MakeSite, Site

from fulcrum.api.names import Role

PATH = "/v1/responses"
ClientOf = Callable[..., openai.AsyncOpenAI]
BODY: dict[str, Any] = {"model": "m", "input": "hi"}
FINAL = "response.completed"


def pair(cut: int | None = None, how: str = "reset") -> tuple[ApiEngine, ApiEngine]:
    return ApiEngine("p", Role.PREFILL), ApiEngine("d", Role.DECODE, cut=cut, how=how)


async def collect(stream: AsyncIterator[Any], types: list[str]) -> None:
    """Note the types of events as they come."""
    async for event in stream:
        types.append(event.type)  # noqa: PERF401  those before an error, too


@pytest.fixture
async def client_of() -> AsyncIterator[ClientOf]:
    """Makes clients of a site."""
    made: list[openai.AsyncOpenAI] = []

    def make(site: Site) -> openai.AsyncOpenAI:
        url = f"http://127.0.0.1:{site.gateway.port}/v1"
        made.append(openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0))
        return made[-1]

    yield make
    for client in made:
        await client.close()


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The data of each event, whose name is its type."""
    read = []
    for text in body.decode().split("\n\n"):
        name, _, data = text.partition("\ndata: ")
        if data:
            event = json.loads(data)
            assert name == f"event: {event['type']}"
            read.append(event)
    return read


async def test_two_legs(make_site: MakeSite, client_of: ClientOf) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    answer = await client_of(site).responses.create(model="m", input="hi", instructions="be brief", store=True)
    assert answer.output_text == "Hello there"
    assert answer.to_dict()["store"] is False
    (first,), (second,) = prefill.seen, decode.seen
    assert (first.leg, second.leg) == ("prefill", "decode")
    assert (first.body["max_output_tokens"], second.body.get("max_output_tokens")) == (1, None)
    assert "max_tokens" not in first.body
    for seen in (first, second):
        assert seen.body["store"] is False
        assert seen.body["request_id"] == answer.id == "resp_" + seen.headers["x-request-id"]
    assert second.body["kv_transfer_params"]["from"] == "p"
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{PATH}",code="200"}}') == 1
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 7
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3


async def test_a_stream(make_site: MakeSite, client_of: ClientOf) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    stream = await client_of(site).responses.create(model="m", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there"
    assert (events[0].type, events[-1].type) == ("response.created", FINAL)
    for event in events:
        if event.type in ("response.created", "response.in_progress", FINAL):
            assert event.response.to_dict()["store"] is False
    assert prefill.seen[0].body["stream"] is False
    assert "stream_options" not in decode.seen[0].body
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3
    assert await site.metric("fulcrum_gateway_time_to_first_token_seconds_count") == 1
    answer = await site.post({**BODY, "stream": True}, PATH)
    assert answer.complete
    assert len(events_of(answer.body)) == len(events)


@pytest.mark.parametrize("how", ["reset", "end", "error"])
async def test_a_cut_stream_ends_with_an_error_event_and_counts_as_failed(
    make_site: MakeSite, client_of: ClientOf, how: str
) -> None:
    site = await make_site(*pair(6, how))
    answer = await site.post({**BODY, "stream": True}, PATH)
    assert not answer.complete
    *begun, last = events_of(answer.body)
    assert len(begun) == 6
    assert (last["type"], last["code"]) == ("error", "upstream_failed")
    assert last["sequence_number"] >= 6
    assert b"EngineCore" not in answer.body
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{PATH}",reason="UpstreamFailed"}}') == 1
    site = await make_site(*pair(6, how))  # a worker that was lost is avoided
    stream = await client_of(site).responses.create(model="m", input="hi", stream=True)
    types: list[str] = []
    with pytest.raises(openai.APIConnectionError):  # the body has no end either
        await collect(stream, types)
    assert (types[-1], FINAL in types) == ("error", False)


@pytest.mark.parametrize("how", ["reset", "end", "error"])
@pytest.mark.parametrize("cut", [0, 1, 2])
async def test_a_worker_that_is_lost_before_its_first_token_is_replaced(
    make_site: MakeSite, cut: int, how: str
) -> None:
    """vLLM sends two events at once: the client has none of them until there is a token."""
    broken = ApiEngine("a", Role.MIXED, cut=cut, how=how)
    site = await make_site(broken, ApiEngine("b", Role.MIXED))
    for _ in range(3):
        answer = await site.post({**BODY, "stream": True}, PATH)
        assert answer.complete
        types = [event["type"] for event in events_of(answer.body)]
        assert (types.count("response.created"), types.count(FINAL)) == (1, 1)
        assert answer.headers["x-fulcrum-path"] == "b"
    assert broken.seen


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"background": "true"}, "background"),
        ({"store": 1}, "store"),
        ({"previous_input_messages": [{}]}, "previous_input_messages"),
        ({"enable_response_messages": True}, "enable_response_messages"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1 << 25}, "max_output_tokens"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": {}}, "input"),
    ],
)
async def test_what_is_refused_reaches_no_engine(make_site: MakeSite, more: dict[str, Any], param: str) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    answer = await site.post({**BODY, **more}, PATH)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)
    assert prefill.seen == decode.seen == []


async def test_what_the_legs_would_cut_differently_takes_one(make_site: MakeSite) -> None:
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    assert (await site.post({**BODY, "truncation": "auto"}, PATH)).headers["x-fulcrum-path"] == "d"
    assert (await site.post({**BODY, "truncation": "disabled"}, PATH)).headers["x-fulcrum-path"] == "p,d"


async def test_null_is_as_good_as_absent(make_site: MakeSite) -> None:
    """vLLM takes null in fields that its answer repeats and must have."""
    prefill, decode = pair()
    site = await make_site(prefill, decode)
    nullable = ("truncation", "background", "store", "stream", "request_id", "temperature", "metadata", "of_tomorrow")
    body = {**dict.fromkeys(nullable), **BODY}
    assert (await site.post(body, PATH)).headers["x-fulcrum-path"] == "p,d"
    assert None not in prefill.seen[0].body.values()
    assert set(decode.seen[0].body) - set(BODY) <= {"store", "request_id", "kv_transfer_params", "stream", "priority"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "http://127.0.0.1/x"},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}},
        {"type": "input_file", "file_url": "http://127.0.0.1/x"},
        {"video_url": {"url": "http://127.0.0.1/x"}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "prompt_embeds", "data": "AAAA"},
    ],
)
async def test_media_are_judged_wherever_they_stand(make_site: MakeSite, part: dict[str, Any]) -> None:
    engine = ApiEngine("m", Role.MIXED)
    site = await make_site(engine)
    for item in (
        {"role": "user", "content": [part]},
        {"type": "function_call_output", "call_id": "c", "output": [part]},
    ):
        body = json.dumps({**BODY, "input": [item]})
        for each in (body, body.replace("_url", "\\u005furl").replace("_embeds", "\\u005fembeds")):
            answer = await site.post(each.encode(), PATH)
            assert (answer.status, answer.json()["error"]["param"]) == (400, "input"), each
    assert engine.seen == []


async def test_images_that_come_along_are_taken(make_site: MakeSite) -> None:
    site = await make_site(ApiEngine("m", Role.MIXED))
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    body = {**BODY, "input": [{"role": "user", "content": [part, {"type": "input_text", "text": "hi"}]}]}
    assert (await site.post(body, PATH)).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("POST", "")],
)
async def test_there_is_nothing_to_get(make_site: MakeSite, client_of: ClientOf, method: str, path: str) -> None:
    engine = ApiEngine("m", Role.MIXED)
    site = await make_site(engine)
    client = await site.connect()
    client.get(f"{PATH}/resp_1{path}", method)
    answer = await client.answer()
    assert answer.status == 404
    assert "not stored" in answer.json()["error"]["message"]
    with pytest.raises(openai.NotFoundError, match="not stored"):
        await client_of(site).responses.retrieve("resp_1")
    assert engine.seen == []


async def test_errors_are_openais(make_site: MakeSite, client_of: ClientOf) -> None:
    async def refuse(engine: Engine, seen: Any, writer: Any) -> bool:
        await engine.send(writer, 400, {"error": {"message": "too long", "code": 400}})
        return True

    engine = ApiEngine("m", Role.MIXED)
    engine.behave = refuse
    site = await make_site(engine)
    with pytest.raises(openai.BadRequestError, match="too long"):
        await client_of(site).responses.create(model="m", input="hi")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client_of(site).responses.create(model="other", input="hi")
