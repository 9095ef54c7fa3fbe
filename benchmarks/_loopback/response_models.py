"""Answers of the engines that tests use, held against vLLM's own response classes. Importing it imports vLLM."""

from __future__ import annotations

import warnings
from typing import Any, Final

from pydantic import TypeAdapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from openai.types.responses import ResponseTextDeltaEvent, ResponseTextDoneEvent
    from vllm.entrypoints.anthropic.protocol import (
        AnthropicCountTokensResponse,
        AnthropicMessagesResponse,
        AnthropicStreamEvent,
    )
    from vllm.entrypoints.openai.responses.protocol import ResponsesResponse, StreamingResponsesResponse

_CLASSES: Final[dict[str, Any]] = {
    "message": AnthropicMessagesResponse,
    "message event": AnthropicStreamEvent,
    "count": AnthropicCountTokensResponse,
    "response": ResponsesResponse,
    # vLLM sends the two text events as OpenAI's own classes, which its union leaves out.
    "response event": StreamingResponsesResponse | ResponseTextDeltaEvent | ResponseTextDoneEvent,
}


def problems(answers: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """What is wrong with answers, each given with its kind: fields that a class does not have, or would not make."""
    found = []
    for kind, answer in answers:
        try:
            made = TypeAdapter(_CLASSES[kind]).validate_python(answer)
        except ValueError as error:
            found.append(f"{kind}: {error}")
            continue
        unknown = answer.keys() - made.model_dump(by_alias=True).keys()
        if unknown or getattr(made, "model_extra", None):
            found.append(f"{kind}: {unknown} {made.model_extra}")
    return found
