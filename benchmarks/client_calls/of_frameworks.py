"""Calls of LangChain, LlamaIndex and LiteLLM."""

from __future__ import annotations

import os
from typing import Any

from asked import (
    ASKED,
    CHAT_CHOICE,
    CHAT_TOOLS,
    DESCRIPTION,
    KEY,
    MOST_TOKENS,
    QUESTION,
    TOOL,
    Call,
    check_arguments,
    check_pieces,
    check_text,
)


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
    chat: dict[str, Any] = {"model": f"openai/{model}", "messages": ASKED, **served}
    hosted = {**chat, "model": f"hosted_vllm/{model}"}
    # Not `hosted_vllm/`: it removes `strict` from tools, without which vLLM does not hold arguments to their schema.
    tools = {**chat, "tools": CHAT_TOOLS, "tool_choice": CHAT_CHOICE}
    anthropic = {**chat, "model": f"anthropic/{model}", "api_base": url}

    def with_tools() -> None:
        call = litellm.completion(**tools).choices[0].message.tool_calls[0].function
        check_arguments(call.name, call.arguments)

    def whole(fields: dict[str, Any]) -> None:
        check_text(litellm.completion(**fields).choices[0].message.content)

    def streamed(fields: dict[str, Any]) -> None:
        pieces = litellm.completion(**fields, stream=True)
        check_text("".join(piece.choices[0].delta.content or "" for piece in pieces))

    def responses() -> None:
        answer = litellm.responses(
            model=f"openai/{model}", input=QUESTION, api_base=f"{url}/v1", api_key=KEY, max_output_tokens=MOST_TOKENS
        )
        check_text(answer.output_text)

    return {
        "completion (openai/)": lambda: whole(chat),
        "completion (openai/), streamed": lambda: streamed(chat),
        "completion (openai/) with tools": with_tools,
        "completion (openai/) with tools, streamed": lambda: check_pieces(litellm.completion(**tools, stream=True)),
        "responses (openai/)": responses,
        "completion (hosted_vllm/)": lambda: whole(hosted),
        "completion (hosted_vllm/), streamed": lambda: streamed(hosted),
        "completion (anthropic/)": lambda: whole(anthropic),
        "completion (anthropic/), streamed": lambda: streamed(anthropic),
    }
