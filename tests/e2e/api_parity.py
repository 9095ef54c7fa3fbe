"""Official clients of three APIs, through the gateway over two legs and at one engine alone: the answers are equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
from answers import margin, min_margin
from local_cluster import Cluster
from tests.machine import deadline_seconds

MOST_TOKENS = 12
_CALL_TOKENS = 96
_COUNTRIES = ("Japan", "France", "Italy", "Spain", "Germany", "China")
_TOOL = "get_weather"
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_FUNCTION = {"name": _TOOL, "description": "The weather of a city.", "parameters": _PARAMETERS, "strict": True}
CALLED = (_TOOL, {"city": "Paris"})
"""The only call that the forced choice allows."""


@dataclass(kw_only=True)
class Apis:
    """The clients of one server."""

    url: str
    key: str
    model: str
    paths: list[str] = field(default_factory=list)
    """`x-fulcrum-path` of each answer."""

    def __post_init__(self) -> None:
        hooks: Any = {"event_hooks": {"response": [self._note]}, "timeout": deadline_seconds(120)}
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(**hooks),
        )
        self.anthropic = anthropic.Anthropic(
            base_url=self.url,
            auth_token=self.key,
            max_retries=0,
            http_client=anthropic.DefaultHttpxClient(**hooks),
        )

    def _note(self, response: Any) -> None:
        self.paths.append(response.headers.get("x-fulcrum-path", ""))

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()


def question(cluster: Cluster) -> str:
    """A question whose every greedy step wins clearly at one engine."""
    for country in _COUNTRIES:
        asked = f"What is the capital of {country}?"
        body = {
            "messages": _messages(asked), "max_tokens": MOST_TOKENS, "temperature": 0, "logprobs": True,
            "top_logprobs": 2, "model": cluster.name,
        }  # fmt: skip
        steps = cluster.ask_engine("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
        if all(margin(top["logprob"] for top in step["top_logprobs"]) >= min_margin(cluster) for step in steps):
            return asked
    raise AssertionError("every question has a greedy step that rounding may change")


def _messages(asked: str) -> Any:
    return [{"role": "user", "content": asked}]


def chat(apis: Apis, asked: str) -> str:
    answer = apis.openai.chat.completions.create(**_chat(apis, asked))
    return answer.choices[0].message.content or ""


def chat_streamed(apis: Apis, asked: str) -> str:
    stream = apis.openai.chat.completions.create(**_chat(apis, asked), stream=True)
    return "".join(piece.choices[0].delta.content or "" for piece in stream)


def responses(apis: Apis, asked: str) -> str:
    return str(apis.openai.responses.create(**_response(apis, asked)).output_text)


def responses_streamed(apis: Apis, asked: str) -> str:
    with apis.openai.responses.stream(**_response(apis, asked)) as stream:
        return str(stream.get_final_response().output_text)


def messages(apis: Apis, asked: str) -> str:
    return "".join(block.text for block in apis.anthropic.messages.create(**_message(apis, asked)).content)


def messages_streamed(apis: Apis, asked: str) -> str:
    with apis.anthropic.messages.stream(**_message(apis, asked)) as stream:
        return "".join(stream.text_stream)


TEXTS: tuple[Callable[[Apis, str], str], ...] = (
    chat, chat_streamed, responses, responses_streamed, messages, messages_streamed,
)  # fmt: skip


def question_for_calls(apis: Apis) -> str:
    """A question that is answered with a whole call: the grammar of JSON lets a small model write spaces for ever."""
    for country in _COUNTRIES:
        asked = f"What is the weather in the capital of {country}?"
        if apis.openai.chat.completions.create(**_forced(apis, asked)).choices[0].finish_reason != "length":
            return asked
    raise AssertionError(f"no call is complete after {_CALL_TOKENS} tokens")


def _forced(apis: Apis, asked: str) -> dict[str, Any]:
    return {
        **_chat(apis, asked),
        "max_tokens": _CALL_TOKENS,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": _TOOL}},
    }


def calls(apis: Apis, asked: str) -> list[tuple[str, Any]]:
    """The forced call as each API gives it, whole and streamed."""
    forced = _forced(apis, asked)
    whole = apis.openai.chat.completions.create(**forced).choices[0].message.tool_calls[0].function
    pieces = [
        call.function
        for piece in apis.openai.chat.completions.create(**forced, stream=True)
        for call in piece.choices[0].delta.tool_calls or []
    ]
    name, arguments = ("".join(getattr(each, part) or "" for each in pieces) for part in ("name", "arguments"))
    found = [(whole.name, json.loads(whole.arguments)), (name, json.loads(arguments))]
    flat = {
        **_response(apis, asked),
        "max_output_tokens": _CALL_TOKENS,
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": {"type": "function", "name": _TOOL},
    }
    outputs = [apis.openai.responses.create(**flat).output]
    with apis.openai.responses.stream(**flat) as stream:
        outputs.append(stream.get_final_response().output)
    found += [
        (each.name, json.loads(each.arguments)) for out in outputs for each in out if each.type == "function_call"
    ]
    tool = {
        **_message(apis, asked),
        "max_tokens": _CALL_TOKENS,
        "tools": [
            {"name": _TOOL, "description": _FUNCTION["description"], "input_schema": _PARAMETERS, "strict": True}
        ],
        "tool_choice": {"type": "tool", "name": _TOOL},
    }
    answers = [apis.anthropic.messages.create(**tool)]
    with apis.anthropic.messages.stream(**tool) as events:
        answers.append(events.get_final_message())
    return [*found, *((each.name, each.input) for out in answers for each in out.content if each.type == "tool_use")]


def _chat(apis: Apis, asked: str) -> dict[str, Any]:
    return {"model": apis.model, "messages": _messages(asked), "max_tokens": MOST_TOKENS, "temperature": 0}


def _response(apis: Apis, asked: str) -> dict[str, Any]:
    return {"model": apis.model, "input": asked, "max_output_tokens": MOST_TOKENS, "temperature": 0}


def _message(apis: Apis, asked: str) -> dict[str, Any]:
    # The client gives no `temperature` on any more, but passes what stands in `extra_body`.
    return {
        "model": apis.model, "messages": _messages(asked), "max_tokens": MOST_TOKENS,
        "extra_body": {"temperature": 0},
    }  # fmt: skip
