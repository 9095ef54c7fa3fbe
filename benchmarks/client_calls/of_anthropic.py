"""Calls of Anthropic's client."""

from __future__ import annotations

from typing import Any

import anthropic
from asked import (
    ASKED,
    DESCRIPTION,
    KEY,
    MOST_TOKENS,
    PARAMETERS,
    THINKS,
    TOOL,
    Call,
    check_arguments,
    check_text,
    say,
)


def anthropic_calls(url: str, model: str) -> dict[str, Call]:
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    message: dict[str, Any] = {"model": model, "messages": ASKED, "max_tokens": MOST_TOKENS}
    tools = {
        **message,
        "tools": [{"name": TOOL, "description": DESCRIPTION, "input_schema": PARAMETERS, "strict": True}],
        "tool_choice": {"type": "tool", "name": TOOL},
    }

    thinks = {**message, **THINKS}

    def thinks_streamed() -> None:
        with client.messages.stream(**thinks) as stream:
            check_text(stream.get_final_message().content[0].thinking)

    def check_block(answer: Any) -> None:
        block = next(each for each in answer.content if each.type == "tool_use")
        check_arguments(block.name, block.input)

    def streamed() -> None:
        with client.messages.stream(**message) as stream:
            check_text("".join(stream.text_stream))
            say(stream.get_final_message().usage.output_tokens, "no usage")

    def tools_streamed() -> None:
        with client.messages.stream(**tools) as stream:
            check_block(stream.get_final_message())

    def refused() -> None:
        try:
            client.messages.create(**{**message, "max_tokens": 0})
        except anthropic.BadRequestError as error:
            say(error.body["error"]["type"] == "invalid_request_error", "the error has another form")
        else:
            raise ValueError("it is not refused")

    return {
        "messages": lambda: check_text(client.messages.create(**message).content[0].text),
        "messages, streamed": streamed,
        "messages with tools": lambda: check_block(client.messages.create(**tools)),
        "messages with tools, streamed": tools_streamed,
        "messages with thinking": lambda: check_text(client.messages.create(**thinks).content[0].thinking),
        "messages with thinking, streamed": thinks_streamed,
        "count_tokens": lambda: say(
            client.messages.count_tokens(model=model, messages=ASKED).input_tokens > 1, "no tokens"
        ),
        "an error": refused,
    }
