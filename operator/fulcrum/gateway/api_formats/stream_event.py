"""One event of an engine's stream, as far as it is read. Values only."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fulcrum.gateway.api_formats.inference_request import Usage


class Delta(msgspec.Struct):
    """Part of a chat's answer."""

    role: str | None = None
    content: str | None = None
    reasoning: Any = None
    tool_calls: Any = None


class Logprobs(msgspec.Struct):
    """Log probabilities of an event's tokens, as `/v1/completions` tells them; a chat's (`content`) are not read."""

    text_offset: list[int] = []
    token_logprobs: list[msgspec.Raw] = []
    tokens: list[str] = []
    top_logprobs: list[msgspec.Raw] = []


class Choice(msgspec.Struct):
    """One choice in an event of either kind of stream."""

    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class Event(msgspec.Struct):
    """One event of a stream."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


decoder: Final = msgspec.json.Decoder(Event)
