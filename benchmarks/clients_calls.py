"""Calls of unmodified clients to an endpoint. `clients.py` starts this in an environment with the clients alone.

The job, `{"url", "model"}`, comes on standard input. Each line of the output is a row: client, call, and why it does
not work (empty: it does).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

QUESTION = "What is the weather in Paris?"
MOST_TOKENS = 64
TOOL = "get_weather"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""An enumeration, so that even a small model's arguments have an end and are right."""
DESCRIPTION = "The weather of a city."
FUNCTION = {"name": TOOL, "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True}
"""Strict: vLLM 0.32 holds arguments to their schema only where that is asked for."""
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT_CHOICE = {"type": "function", "function": {"name": TOOL}}
ASKED = [{"role": "user", "content": QUESTION}]
KEY = "unused"
"""Clients want one; an endpoint without keys ignores it."""

Call = Callable[[], None]


def say(ok: object, what: str) -> None:
    """Raise where something does not hold."""
    if not ok:
        raise ValueError(what)


def check_text(text: str | None) -> None:
    say(text and text.strip(), "no text")


def check_arguments(name: str | None, arguments: str | dict[str, Any]) -> None:
    """Raise where a call is not the one that was forced."""
    say(name == TOOL, f"the tool is {name!r}")
    read = json.loads(arguments) if isinstance(arguments, str) else arguments
    say(read.get("city") in PARAMETERS["properties"]["city"]["enum"], f"the arguments are {arguments!r}")


def check_pieces(pieces: Iterable[Any]) -> None:
    """Raise where the pieces of OpenAI's chat stream do not make the call that was forced, or the stream has no end."""
    name, arguments, ended = "", "", False
    for piece in pieces:
        for choice in piece.choices:
            ended = ended or choice.finish_reason is not None
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    say(ended, "no finish reason")
    check_arguments(name, arguments)


def openai_calls(url: str, model: str) -> dict[str, Call]:
    import openai

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


def anthropic_calls(url: str, model: str) -> dict[str, Call]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    message: dict[str, Any] = {"model": model, "messages": ASKED, "max_tokens": MOST_TOKENS}
    tools = {
        **message,
        "tools": [{"name": TOOL, "description": DESCRIPTION, "input_schema": PARAMETERS, "strict": True}],
        "tool_choice": {"type": "tool", "name": TOOL},
    }

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
        "count_tokens": lambda: say(
            client.messages.count_tokens(model=model, messages=ASKED).input_tokens > 1, "no tokens"
        ),
        "an error": refused,
    }


def langchain_calls(url: str, model: str) -> dict[str, Call]:
    from langchain_openai import ChatOpenAI

    client = ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=model, max_tokens=MOST_TOKENS, max_retries=0)
    responses = ChatOpenAI(
        base_url=f"{url}/v1", api_key=KEY, model=model, max_tokens=MOST_TOKENS, max_retries=0, use_responses_api=True
    )
    forced = client.bind_tools(CHAT_TOOLS, tool_choice=TOOL, strict=True)

    def check_call(message: Any) -> None:
        check_arguments(message.tool_calls[0]["name"], message.tool_calls[0]["args"])

    def tools_streamed() -> None:
        pieces = list(forced.stream(QUESTION))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        check_call(whole)

    return {
        "invoke": lambda: check_text(client.invoke(QUESTION).text),
        "stream": lambda: check_text("".join(piece.text for piece in client.stream(QUESTION))),
        "invoke with tools": lambda: check_call(forced.invoke(QUESTION)),
        "stream with tools": tools_streamed,
        "invoke (responses)": lambda: check_text(responses.invoke(QUESTION).text),
        "stream (responses)": lambda: check_text("".join(piece.text for piece in responses.stream(QUESTION))),
    }


def llama_index_calls(url: str, model: str) -> dict[str, Call]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import BaseModel, Field

    class Place(BaseModel):
        city: str = Field(json_schema_extra={"enum": ["Paris", "Rome"]})

    client = OpenAILike(
        model=model, api_base=f"{url}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True, strict=True,
        max_tokens=MOST_TOKENS, max_retries=0,
    )  # fmt: skip
    asked = [ChatMessage(role="user", content=QUESTION)]
    tool = FunctionTool.from_defaults(lambda city: city, name=TOOL, description=DESCRIPTION, fn_schema=Place)

    def check_call(answer: Any) -> None:
        (call,) = client.get_tool_calls_from_response(answer)
        check_arguments(call.tool_name, call.tool_kwargs)

    def tools_streamed() -> None:
        check_call(list(client.stream_chat_with_tools([tool], chat_history=asked, tool_choice=TOOL))[-1])

    return {
        "chat": lambda: check_text(client.chat(asked).message.content),
        "stream_chat": lambda: check_text("".join(piece.delta or "" for piece in client.stream_chat(asked))),
        "chat_with_tools": lambda: check_call(client.chat_with_tools([tool], chat_history=asked, tool_choice=TOOL)),
        "stream_chat_with_tools": tools_streamed,
        "complete": lambda: check_text(client.complete(QUESTION).text),
    }


def litellm_calls(url: str, model: str) -> dict[str, Call]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    served = {"api_base": f"{url}/v1", "api_key": KEY, "max_retries": 0, "max_tokens": MOST_TOKENS}
    chat: dict[str, Any] = {"model": f"hosted_vllm/{model}", "messages": ASKED, **served}
    tools = {**chat, "tools": CHAT_TOOLS, "tool_choice": CHAT_CHOICE}
    anthropic = {**chat, "model": f"anthropic/{model}", "api_base": url}

    def with_tools() -> None:
        call = litellm.completion(**tools).choices[0].message.tool_calls[0].function
        check_arguments(call.name, call.arguments)

    def streamed(fields: dict[str, Any]) -> None:
        pieces = litellm.completion(**fields, stream=True)
        check_text("".join(piece.choices[0].delta.content or "" for piece in pieces))

    def responses() -> None:
        answer = litellm.responses(
            model=f"openai/{model}", input=QUESTION, api_base=f"{url}/v1", api_key=KEY, max_output_tokens=MOST_TOKENS
        )
        check_text(answer.output_text)

    return {
        "completion": lambda: check_text(litellm.completion(**chat).choices[0].message.content),
        "completion, streamed": lambda: streamed(chat),
        "completion with tools": with_tools,
        "completion with tools, streamed": lambda: check_pieces(litellm.completion(**tools, stream=True)),
        "responses": responses,
        "completion (anthropic)": lambda: check_text(litellm.completion(**anthropic).choices[0].message.content),
        "completion (anthropic), streamed": lambda: streamed(anthropic),
    }


CLIENTS: dict[str, Callable[[str, str], dict[str, Call]]] = {
    "openai": openai_calls,
    "anthropic": anthropic_calls,
    "langchain-openai": langchain_calls,
    "llama-index-llms-openai-like": llama_index_calls,
    "litellm": litellm_calls,
}


def main() -> None:
    job = json.load(sys.stdin)
    for client, make in CLIENTS.items():
        for call, run in make(job["url"], job["model"]).items():
            why = ""
            try:
                run()
            except Exception as error:  # noqa: BLE001  whatever a client raises is what the row says
                why = f"{type(error).__name__}: {error}".strip()
            print(json.dumps([f"{client} {version(client)}", call, why]), flush=True)


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())  # litellm and llama-index want one
    main()
