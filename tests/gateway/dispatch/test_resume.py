"""Streams that lose their worker: the client gets what it would have got, or an error that says so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.gateway.conftest import Answered, Engine, MakeSite, Seen, Site, eventually
from tests.gateway.models import Cut, Model, answer, generate, logprobs_of, prompt_of
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass
from fulcrum.gateway.dispatch import recovery
from fulcrum.gateway.dispatch import stream_log as stream_log_module

PROMPT = {"model": "m", "prompt": "Say it.", "max_tokens": 40, "temperature": 0, "stream": True, "ignore_eos": True}
CHAT = {
    "model": "m", "messages": [{"role": "user", "content": "Say it."}], "max_completion_tokens": 40, "temperature": 0,
    "stream": True, "ignore_eos": True,
}  # fmt: skip
USAGE = {"stream_options": {"include_usage": True}}
EVERY_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
WAYS = ["reset", "eof", "end", "half", "error"]


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def events_of(answer: Answered) -> list[dict[str, Any]]:
    assert answer.status == 200
    assert answer.complete
    *blocks, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    assert blocks[-1] == "data: [DONE]"
    assert blocks.count("data: [DONE]") == 1
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def text_of(events: list[dict[str, Any]]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def check(answer: Answered, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer is one stream, and the undisturbed one."""
    events = events_of(answer)
    outputs = generate(body)
    assert text_of(events) == "".join(output.text for output in outputs)
    assert len({(event["id"], event["object"], event["created"], event["model"]) for event in events}) == 1
    assert events[0]["id"] != ""
    finished = [event["choices"][0] for event in events if event["choices"] and event["choices"][0]["finish_reason"]]
    assert [choice["finish_reason"] for choice in finished] == [outputs[-1].finish]
    assert finished[0]["stop_reason"] == outputs[-1].stop
    if "messages" in body:
        roles = [event["choices"][0]["delta"].get("role") for event in events if event["choices"]]
        assert roles == ["assistant", *[None] * (len(roles) - 1)]
    closing = [event["usage"] for event in events if not event["choices"]]
    made = sum(len(output.ids) for output in outputs)
    options = body.get("stream_options") or {}
    if options.get("include_usage"):
        prompt = len(prompt_of(body))
        assert closing == [{"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}]
        assert "usage" in events[1 if "messages" in body else 0] or not options.get("continuous_usage_stats")
    else:
        assert closing == []
    assert not any(event.get("prompt_token_ids") for event in events)
    return events


def check_logprobs(events: list[dict[str, Any]], body: dict[str, Any]) -> None:
    """Each token's log probabilities came once, and those of the undisturbed stream."""
    choices = [event["choices"][0] for event in events if event["choices"]]
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert ids == [token for output in generate(body) for token in output.ids]
    expected = logprobs_of(prompt_of(body), ids, body["logprobs"], offset=0)
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert {name: [value for part in parts for value in part[name]] for name in expected} == expected


async def two_each(make_site: MakeSite, **options: Any) -> tuple[Site, list[Model]]:
    models = [Model(name, Role.PREFILL) for name in ("p1", "p2")]
    models += [Model(name, Role.DECODE, **options) for name in ("d1", "d2")]
    return await make_site(*models), models


def cut_all(models: list[Model], *cuts: Cut) -> None:
    """Whoever streams first cuts first."""
    queue = list(cuts)
    for model in models:
        model.cuts = queue


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("body", [PROMPT, CHAT, PROMPT | USAGE, CHAT | EVERY_USAGE], ids=["text", "chat", "u", "eu"])
async def test_a_cut_stream_goes_on(make_site: MakeSite, body: dict[str, Any], how: str) -> None:
    site, models = await two_each(make_site)
    for events in (0, 1, 2, 7, 23, 39):
        cut_all(models, Cut(events, how))
        check(await site.post(body, path_of(body)), body)
        assert models[2].cuts == []
    # A text that breaks off before its first event has not begun, and is simply asked for again.
    resumes = 5 if "prompt" in body and how != "end" else 6
    assert await site.metric('fulcrum_gateway_resumes_total{outcome="resumed"}') == resumes
    assert await site.metric("fulcrum_gateway_resume_gap_seconds_count") == resumes
    # The first one, at least, finds workers that nothing is held against.
    rests = [seen.leg for model in models for seen in model.seen if isinstance(seen.body.get("prompt"), list)]
    assert {"prefill", "decode"} <= set(rests)


@pytest.mark.parametrize("body", [PROMPT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("per_event", [1, 3])
@pytest.mark.parametrize("stop", [None, "de", ["e日", "éa", "f.G c"], ["nothing like this"]])
@pytest.mark.parametrize("include", [False, True])
async def test_a_stream_goes_on_from_any_event(
    make_site: MakeSite, body: dict[str, Any], per_event: int, stop: Any, include: bool
) -> None:
    site, models = await two_each(make_site, per_event=per_event)
    for number, text in enumerate(("x", "tell me")):
        body = {**body, "include_stop_str_in_output": include}
        if stop is not None:
            body["stop"] = stop
        body |= {"prompt": text} if "prompt" in body else {"messages": [{"role": "user", "content": text}]}
        for events in range(number, len(generate(body, per_event=per_event)), 3):
            cut_all(models, Cut(events, "reset"))
            check(await site.post(body, path_of(body)), body)


@pytest.mark.parametrize("per_event", [1, 3])
@pytest.mark.parametrize("more", [{}, {"stop": ["nothing like"]}, {"stop": "de", "include_stop_str_in_output": True}])
async def test_log_probabilities_go_on(make_site: MakeSite, more: dict[str, Any], per_event: int) -> None:
    site, models = await two_each(make_site, per_event=per_event)
    for logprobs in (0, 3):
        body = PROMPT | more | {"logprobs": logprobs}
        for events in range(1, len(generate(body, per_event=per_event)), 3):
            cut_all(models, Cut(events, "reset"), Cut(4, "reset"))
            check_logprobs(check(await site.post(body), body), body)
    assert await site.metric('fulcrum_gateway_resumes_total{outcome="resumed"}') > 0


async def test_the_rest_is_asked_for_with_the_same_log_probabilities(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    asked = {"logprobs": 3, "logprob_token_ids": [97], "return_tokens_as_token_ids": True}
    cut_all(models, Cut(5, "reset"))
    await site.post(PROMPT | asked)
    rests = [seen.body for model in models for seen in model.seen if isinstance(seen.body["prompt"], list)]
    assert rests
    assert all(rest | asked == rest for rest in rests)


async def test_tokens_with_log_probabilities_are_not_sampled_again(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    sampled = PROMPT | {"temperature": 0.7, "logprobs": 1}
    cut_all(models, Cut(30, "reset"))
    events = events_of(await site.post(sampled))
    choices = [choice for event in events for choice in event["choices"]]
    assert all(len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) for choice in choices)
    cut_all(models, Cut(30, "reset"))
    answer = await site.post(sampled | {"stop": ["never at all"]})  # which holds back text of tokens that were told
    assert not answer.complete
    assert b"would be sampled again" in answer.body


@pytest.mark.parametrize("per_event", [1, 2])
@pytest.mark.parametrize("stop", [None, ["nothing like this"], ["no"]])
async def test_a_stream_survives_several_cuts(make_site: MakeSite, stop: list[str] | None, per_event: int) -> None:
    site, models = await two_each(make_site, per_event=per_event)
    for prompt in ("Say it.", "again", "日本"):
        body = PROMPT | USAGE | {"prompt": prompt} | ({"stop": stop} if stop else {})
        # The second cut comes before the client got anything new, where text is held back.
        cut_all(models, Cut(13, "reset"), Cut(2, "eof"), Cut(19, "error"))
        check(await site.post(body), body)
        assert models[0].cuts == []


async def test_a_request_that_kills_its_workers_is_given_up(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    cut_all(models, *[Cut(2, "reset")] * 20)
    answer = await site.post(PROMPT)
    assert not answer.complete
    assert b"Several workers failed" in answer.body
    assert b"[DONE]" not in answer.body
    assert len(models[2].cuts) >= 20 - 6
    assert await site.metric('fulcrum_gateway_resumes_total{outcome="failed"}') == 1


@pytest.mark.parametrize("body", [PROMPT, CHAT, CHAT | USAGE], ids=["text", "chat", "usage"])
async def test_only_the_end_was_missing(make_site: MakeSite, body: dict[str, Any]) -> None:
    site, models = await two_each(make_site)
    cut_all(models, Cut(-1, "reset"))
    check(await site.post(body, path_of(body)), body)
    assert sum(seen.leg == "decode" for model in models[2:] for seen in model.seen) == 1


async def test_whole_requests_go_on_too(make_site: MakeSite) -> None:
    models = [Model("m1", Role.MIXED), Model("m2", Role.MIXED)]
    site = await make_site(*models)
    models[0].cuts = models[1].cuts = [Cut(6, "reset")]
    check(await site.post(CHAT | USAGE, "/v1/chat/completions"), CHAT | USAGE)
    assert {seen.leg for model in models for seen in model.seen} == {"whole"}


async def test_prompt_ids_are_for_those_who_ask(make_site: MakeSite) -> None:
    site, _ = await two_each(make_site)
    events = events_of(await site.post(PROMPT))
    assert [event["choices"][0]["prompt_token_ids"] for event in events] == [None] * len(events)
    assert [event["choices"][0]["token_ids"] for event in events] == [each.ids for each in generate(PROMPT)]
    events = events_of(await site.post(PROMPT | {"return_token_ids": True}))
    assert events[0]["choices"][0]["prompt_token_ids"] == prompt_of(PROMPT)
    events = events_of(await site.post(PROMPT | {"return_token_ids": False}))
    assert events[0]["choices"][0]["token_ids"] is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"return_token_ids": False}, "in several parts"),
        ({"logprobs": 1, "echo": True}, "more in it than text"),
        ({"response_format": {"type": "json_object"}}, "more in it than text"),
        ({"structured_outputs": {"json": {"type": "object"}}}, "more in it than text"),
        ({"n": 2}, "in several parts"),
        (CHAT | {"logprobs": True, "top_logprobs": 2}, "more in it than text"),
        (CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, "more in it than text"),
    ],
)
async def test_what_cannot_go_on_ends_with_an_error(make_site: MakeSite, more: dict[str, Any], why: str) -> None:
    site, models = await two_each(make_site)
    cut_all(models, Cut(3, "reset"))
    path = "/v1/chat/completions" if "messages" in more else "/v1/completions"
    answer = await site.post(more if "messages" in more else PROMPT | more, path)
    assert not answer.complete
    last = json.loads(answer.body.decode().split("\n\n")[-2].removeprefix("data: "))
    assert last["error"]["code"] == "upstream_failed"
    assert why in last["error"]["message"]
    assert await site.metric('fulcrum_gateway_resumes_total{outcome="impossible"}') == 1
    assert await site.metric(f'fulcrum_gateway_requests_total{{route="{path}",reason="UpstreamFailed"}}') == 1


@pytest.mark.parametrize("more", [{"tools": None, "logprobs": None}, {"response_format": {"type": "text"}}, {"n": 1}])
async def test_what_is_not_asked_for_is_no_obstacle(make_site: MakeSite, more: dict[str, Any]) -> None:
    site, models = await two_each(make_site)
    cut_all(models, Cut(3, "reset"))
    check(await site.post(PROMPT | more), PROMPT)


async def test_pictures_cannot_be_sent_again(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    cut_all(models, Cut(3, "reset"))
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    body = CHAT | {"messages": [{"role": "user", "content": parts}]}
    answer = await site.post(body, "/v1/chat/completions")
    assert not answer.complete
    assert b"more in it than text" in answer.body


async def test_an_engine_that_tells_no_tokens(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    for model in models:
        model.token_ids = False
    cut_all(models, Cut(3, "reset"))
    answer = await site.post(PROMPT)
    assert not answer.complete
    assert b"does not tell its tokens" in answer.body


async def test_another_sample_goes_on_after_what_was_sent(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    body = PROMPT | {"temperature": 0.7, "stop": ["never at all"]}
    before = "".join(output.text for output in generate(body)[:30])

    def other(seen: dict[str, Any]) -> None:
        if isinstance(seen.get("prompt"), list):
            seen["prompt"] = [*seen["prompt"][:-1], *b"!", seen["prompt"][-1]]  # not the same any more

    for model in models:
        model.twist = other
    cut_all(models, Cut(30, "reset"))
    text = text_of(events_of(await site.post(body)))
    assert text.startswith(before)
    assert len(text) > len(before)


async def test_a_greedy_stream_that_goes_on_differently_is_not_continued(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    body = PROMPT | {"stop": ["never at all"]}

    def other(seen: dict[str, Any]) -> None:
        if isinstance(seen.get("prompt"), list):
            seen["prompt"] = [*seen["prompt"], *b"!"]

    for model in models:
        model.twist = other
    cut_all(models, Cut(30, "reset"))
    answer = await site.post(body)
    assert not answer.complete
    assert b"went on differently" in answer.body
    assert not await site.metric('fulcrum_gateway_legs_total{leg="decode",outcome="reset"}') > 1


async def test_long_streams_are_kept_as_tokens(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log_module, "ROOM_BYTES", 3000)
    monkeypatch.setattr(stream_log_module, "LEAST_ROOM_BYTES", 1000)
    site, models = await two_each(make_site)
    body = PROMPT | {"max_tokens": 1500} | USAGE
    cut_all(models, Cut(1200, "reset"))
    check(await site.post(body), body)


async def test_a_stream_waits_for_a_worker(make_site: MakeSite) -> None:
    models = [Model("m1", Role.MIXED)]
    site = await make_site(*models)
    models[0].cuts = [Cut(6, "reset")]
    check(await site.post(PROMPT), PROMPT)


async def test_a_worker_that_never_tells_the_prompts_tokens_is_left(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PROBE_SECONDS", 0.5)
    site, models = await two_each(make_site)
    cut_all(models, Cut(7, "reset"))
    hangs = ["once"]

    async def hang_once(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if hangs and not seen.body.get("stream") and "kv_transfer_params" not in seen.body:
            hangs.clear()
            await asyncio.Event().wait()
        return await answer(engine, seen, writer)

    for model in models:
        model.behave = hang_once
    check(await asyncio.wait_for(site.post(PROMPT), deadline_seconds(20)), PROMPT)
    assert not hangs


async def test_a_client_that_leaves_in_between(make_site: MakeSite) -> None:
    models = [Model("m1", Role.MIXED)]
    site = await make_site(*models)
    models[0].cuts = [Cut(6, "reset"), Cut(0, "stall")]
    client = await site.connect()
    client.post(PROMPT)
    await client.read_head()
    await eventually(lambda: len(models[0].seen) >= 3)
    client.close()
    await eventually(lambda: models[0].gone == 1)
    await eventually(lambda: not site.gateway.connections)


async def test_shutdown_finishes_streams_that_are_resumed(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    client = await site.connect()
    holding = asyncio.Event()
    models[2].cuts = models[3].cuts = [Cut(6, "reset")]

    async def slow(engine: Any, seen: Any, writer: Any) -> bool:
        await holding.wait()
        return False

    keep = [model.behave for model in models[:2]]
    for model in models[:2]:
        model.behave = slow
    client.post(PROMPT)
    await eventually(lambda: any(model.seen for model in models[:2]))
    stopping = asyncio.create_task(site.gateway.stop())
    for model, behave in zip(models[:2], keep, strict=True):
        model.behave = behave
    holding.set()
    check(await client.answer(), PROMPT)
    await stopping


async def test_a_client_cannot_raise_itself(make_site: MakeSite) -> None:
    classes = (
        QosClass(name="premium", priority=100, match=ClassMatch(header="x-tier", value="premium")),
        QosClass(name="free", priority=10),
    )
    models = [Model("m", Role.MIXED)]
    site = await make_site(*models, config={"admission": Admission(classes=classes)})
    for headers in ("X-Tier: premium\r\n", ""):
        check(await site.post(PROMPT | {"priority": -1000}, headers=headers), PROMPT)
    assert [seen.body["priority"] for seen in models[0].seen] == [-100, -10]
    cut_all([models[0]], Cut(5, "reset"))
    check(await site.post(PROMPT, headers="X-Tier: premium\r\n"), PROMPT)
    assert [seen.body["priority"] for seen in models[0].seen[2:]] == [-100, -100, -100]


async def test_one_class_has_no_priority(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    check(await site.post(PROMPT | {"priority": -1000}), PROMPT)
    assert not any("priority" in seen.body for model in models for seen in model.seen)


async def test_what_is_the_clients_fault_is_not_tried_elsewhere(make_site: MakeSite) -> None:
    site, models = await two_each(make_site)
    cut_all(models, Cut(3, "refuse"))
    answer = await site.post(PROMPT)
    assert answer.complete
    assert b"your fault" in answer.body
    assert await site.metric("fulcrum_gateway_resumes_total") == 0
    assert not any(worker.suspect for worker in site.gateway.registry.workers)
