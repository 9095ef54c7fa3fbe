"""Schemas of the bodies of `/v1/responses` and `/v1/messages`, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from fulcrum.gateway.api_formats.judge import MOST_TOKENS
from fulcrum.gateway.api_formats.judge_pooling import MOST_TEXTS, SCORED

Json = dict[str, Any]
_FLAG: Final = {"type": ["boolean", "null"]}
_NEVER: Final = {"enum": [False, None], "description": "Not taken."}
_NOTHING: Final = {"type": "null", "description": "Not taken."}
_MODEL: Final = {
    "type": ["string", "null"],
    "description": "The served name, or that of a LoRA adapter (`spec.adapters`); the model itself if absent.",
}
_MESSAGES: Final = {
    "type": "array", "minItems": 1,
    "items": {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}},
}  # fmt: skip
_GUARDED: Final = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "prompt_embeds", "vllm_xargs"), _NOTHING)


def responses_request() -> Json:
    """Body of `/v1/responses`."""
    most = {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_TOKENS}
    stored = {"type": "null", "description": "Not taken: nothing is stored."}
    return _object(
        {
            "input": {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "minItems": 1, "items": {"type": "object"}},
                ]
            },
            "max_output_tokens": most,
            "stream": _FLAG,
            "store": {**_FLAG, "description": "Taken, but nothing is stored: the answer has false."},
            "background": _NEVER,
            "previous_response_id": stored,
            "conversation": stored,
            "previous_input_messages": _NOTHING,
            "enable_response_messages": _NEVER,
        },
        "input",
    )


def messages_request() -> Json:
    """Body of `/v1/messages`."""
    most = {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}
    return _object({"messages": _MESSAGES, "max_tokens": most, "stream": _FLAG}, "messages", "max_tokens")


def count_tokens_request() -> Json:
    """Body of `/v1/messages/count_tokens`."""
    return _object({"messages": _MESSAGES}, "messages")


def pooling_requests() -> dict[str, Json]:
    """Bodies of the routes of a pooling model, by the name of their schema."""
    texts: Json = {"type": "array", "minItems": 1, "maxItems": MOST_TEXTS, "items": {"type": "string"}}
    ids: Json = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    many: Json = {"anyOf": [{"type": "string"}, texts]}
    tokens: list[Json] = [ids, {"type": "array", "minItems": 1, "maxItems": MOST_TEXTS, "items": ids}]
    other: Json = {"description": "Another name of `queries` or `documents`."}
    return {
        "EmbeddingRequest": _object(
            {
                "input": {"anyOf": [*many["anyOf"], *tokens], "description": "Texts, or token ids."},
                "encoding_format": {"enum": ["float", "base64", None]},
                "messages": _NOTHING,
            },
            "input",
        ),
        "ScoreRequest": {
            **_object({**dict.fromkeys(SCORED, many), **{name: other for names in SCORED.values() for name in names}}),
            "description": "Each query with its document, or one query with each. Other fields are passed on.",
        },
        "RerankRequest": _object({"query": {"type": "string"}, "documents": many}, "query", "documents"),
    }


def _object(properties: Json, *required: str) -> Json:
    return {
        "type": "object",
        "description": "Other fields are passed on: the engine says what it takes.",
        "required": list(required),
        "properties": {"model": _MODEL, **properties, **_GUARDED},
        "additionalProperties": True,
    }
