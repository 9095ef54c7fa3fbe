"""What clients ask, and what an answer must have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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
THINKS: dict[str, Any] = {"extra_body": {"temperature": 0, "chat_template_kwargs": {"thinking": True}}}
"""Asks for reasoning, by the template that `clients.py` makes. Greedy: each run shows the same thoughts.

All of it in `extra_body`: Anthropic's client has no argument `temperature`.
"""
KEY = "unused"
"""Clients want one; an endpoint without keys ignores it."""

Call = Callable[[], None]


def say(ok: object, what: str) -> None:
    """Raise where something does not hold."""
    if not ok:
        raise ValueError(what)


def check_text(text: str | None) -> None:
    say(text and text.strip(), f"no text: {text!r}")


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
