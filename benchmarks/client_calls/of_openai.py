"""Calls of OpenAI's client."""

from __future__ import annotations

from typing import Any

import openai
from asked import (
    ASKED,
    CHAT_CHOICE,
    CHAT_TOOLS,
    FUNCTION,
    KEY,
    MOST_TOKENS,
    PARAMETERS,
    QUESTION,
    THINKS,
    TOOL,
    Call,
    check_arguments,
    check_pieces,
    check_text,
    say,
)


def openai_calls(url: str, model: str) -> dict[str, Call]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    chat = {"model": model, "messages": ASKED, "max_tokens": MOST_TOKENS}
    tools = {**chat, "tools": CHAT_TOOLS, "tool_choice": CHAT_CHOICE}
    text = {"model": model, "prompt": "One, two, three, four,", "max_tokens": MOST_TOKENS, "temperature": 0}
    flat = [{"type": "function", **FUNCTION}]
    responses = {"model": model, "input": QUESTION, "max_output_tokens": MOST_TOKENS}
    forced = {**responses, "tools": flat, "tool_choice": {"type": "function", "name": TOOL}}

    def chat_whole() -> None:
        answer = client.chat.completions.create(**chat)
        check_text(answer.choices[0].message.content)
        say(answer.usage.completion_tokens, "no usage")

    def chat_streamed() -> None:
        stream = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
        check_text("".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices))
        say(stream[-1].usage.completion_tokens, "no usage")

    def chat_tools() -> None:
        call = client.chat.completions.create(**tools).choices[0].message.tool_calls[0].function
        check_arguments(call.name, call.arguments)

    def chat_json() -> None:
        schema = {"name": "place", "schema": PARAMETERS}
        answer = client.chat.completions.create(**chat, response_format={"type": "json_schema", "json_schema": schema})
        check_arguments(TOOL, answer.choices[0].message.content or "")

    def completions() -> None:
        check_text(client.completions.create(**text).choices[0].text)

    def completions_streamed() -> None:
        check_text("".join(piece.choices[0].text for piece in client.completions.create(**text, stream=True)))

    def responses_whole() -> None:
        answer = client.responses.create(**responses)
        check_text(answer.output_text)
        say(answer.store is False, "it says that it is stored")

    def responses_streamed() -> None:
        with client.responses.stream(**responses) as stream:
            kinds = {event.type for event in stream}
            check_text(stream.get_final_response().output_text)
        say("response.output_text.delta" in kinds, "no deltas")

    def check_output(output: Any) -> None:
        call = next(each for each in output if each.type == "function_call")
        check_arguments(call.name, call.arguments)

    def responses_tools() -> None:
        check_output(client.responses.create(**forced).output)

    def responses_tools_streamed() -> None:
        with client.responses.stream(**forced) as stream:
            check_output(stream.get_final_response().output)

    return {
        "chat": chat_whole,
        "chat, streamed": chat_streamed,
        "chat with tools": chat_tools,
        "chat with tools, streamed": lambda: check_pieces(client.chat.completions.create(**tools, stream=True)),
        "chat with a JSON schema": chat_json,
        "completions": completions,
        "completions, streamed": completions_streamed,
        "responses": responses_whole,
        "responses, streamed": responses_streamed,
        "responses with tools": responses_tools,
        "responses with tools, streamed": responses_tools_streamed,
        "list of models": lambda: say(model in [each.id for each in client.models.list()], "the model is not in it"),
    }


def openai_reasoning_calls(url: str, model: str) -> dict[str, Call]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    asked = {"model": model, "messages": ASKED, "max_tokens": MOST_TOKENS, **THINKS}

    def whole() -> None:
        check_text(client.chat.completions.create(**asked).choices[0].message.model_extra.get("reasoning"))

    def streamed() -> None:
        deltas = [each.choices[0].delta for each in client.chat.completions.create(**asked, stream=True)]
        check_text("".join(delta.model_extra.get("reasoning") or "" for delta in deltas))

    return {"chat with reasoning": whole, "chat with reasoning, streamed": streamed}
