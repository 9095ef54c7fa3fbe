"""Schemas of the OpenAPI document: what is asked for, and what is answered."""

from __future__ import annotations

from typing import Any, Final

from fulcrum.gateway.api_formats.judge import MOST_TOKENS
from fulcrum.gateway.api_formats.openapi_requests import (
    count_tokens_request,
    messages_request,
    pooling_requests,
    responses_request,
)

Json = dict[str, Any]
ANTHROPIC_ERROR: Final = "AnthropicError"
_COUNT: Final = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**31 - 1}
_TOKENS: Final = {
    "type": ["integer", "null"], "minimum": 1, "maximum": MOST_TOKENS,
    "description": "Most tokens of the answer, at most the model's length.",
}  # fmt: skip
_UNWANTED: Final = {"type": "null", "description": "Set by the gateway only."}
_FLAG: Final = {"type": ["boolean", "null"]}
_PASSED_ON: Final = "Passed on: the engine says what it takes."

_NAMED: Final = "The served name, or that of a LoRA adapter (`spec.adapters`); the model itself if absent."


def schemas() -> Json:
    """By name."""
    prompt = {
        "description": "Text, or token ids; a list of several is a batch.",
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "minItems": 1, "items": {"type": "string"}},
            {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            {
                "type": "array",
                "minItems": 1,
                "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            },
        ],
    }
    message = {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}}
    model = {"id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
             "owned_by": {"type": "string"}, "root": {"type": "string"}, "parent": {"type": ["string", "null"]},
             "max_model_len": {"type": ["integer", "null"]}}  # fmt: skip
    error = {"message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
             "code": {"type": ["string", "integer", "null"]}}  # fmt: skip
    return {
        "CompletionRequest": _request({"prompt": prompt, "echo": _FLAG}, "prompt"),
        "ChatCompletionRequest": _request(
            {"messages": {"type": "array", "minItems": 1, "items": message}, "max_completion_tokens": _TOKENS},
            "messages",
        ),
        "ResponsesRequest": responses_request(),
        "MessagesRequest": messages_request(),
        "CountTokensRequest": count_tokens_request(),
        **pooling_requests(),
        "TokenizeRequest": _tokenize_request(
            {"prompt": {"type": "string"}, "messages": {"type": "array", "items": message}}
        ),
        "DetokenizeRequest": _tokenize_request(
            {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}
        ),
        "Event": _object(
            {"data": {"type": "string", "description": "JSON of the engine's, an `Error`, or `[DONE]`."}}, "data"
        ),
        "Answer": {"type": "object", "description": "As the engine gave it."},
        "Model": _object(model, "id", "object", "created", "owned_by"),
        "ModelList": _object(
            {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}},
            "object", "data",
        ),
        "Document": {"type": "object"},
        ANTHROPIC_ERROR: _object(
            {"type": {"const": "error"}, "error": _object({name: {"type": "string"} for name in ("type", "message")})},
            "type", "error",
        ),
        "Error": _object({"error": _object(error, "message", "type")}, "error"),
    }  # fmt: skip


def _tokenize_request(properties: Json) -> Json:
    model = {
        "type": ["string", "null"],
        "description": _NAMED,
    }
    return {
        "type": "object",
        "description": f"As vLLM's. {_PASSED_ON}",
        "properties": {"model": model, **properties, **dict.fromkeys(("kv_transfer_params", "vllm_xargs"), _UNWANTED)},
        "additionalProperties": True,
    }


def _request(more: Json, *required: str) -> Json:
    sampling: dict[str, Json] = {
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
        "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        "seed": {"type": ["integer", "null"]},
        "stop": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
        "stream_options": {
            "anyOf": [{"type": "null"}, {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}]
        },
    }
    refused = {"type": "null", "description": "Not taken: engines would read it unchecked."}
    return {
        "type": "object",
        "description": f"Other fields are passed on to the engine. {_PASSED_ON}",
        "required": list(required),
        "properties": {
            "model": {
                "type": ["string", "null"],
                "description": _NAMED,
            },
            **more,
            "max_tokens": _TOKENS,
            "n": {**_COUNT, "description": "Answers; more than one are made by one worker."},
            "stream": _FLAG,
            **{name: {**shape, "description": _PASSED_ON} for name, shape in sampling.items()},
            "kv_transfer_params": _UNWANTED,
            "ec_transfer_params": _UNWANTED,
            "prompt_embeds": refused,
            "vllm_xargs": refused,
        },
        "anyOf": [
            {"properties": {"stream": {"const": True}}, "required": ["stream"]},
            {"properties": {"stream_options": {"type": "null"}}},
        ],
        "additionalProperties": True,
    }


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}
