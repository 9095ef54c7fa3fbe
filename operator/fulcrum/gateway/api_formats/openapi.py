"""The gateway's HTTP API as an OpenAPI 3.1 document: `GET /openapi.json`, and docs/reference/openapi.json."""

from __future__ import annotations

from typing import Any, Final

from fulcrum.api.reasons import REJECTIONS, Reason
from fulcrum.gateway.api_formats.inference_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    COUNT_TOKENS_PATH,
    DETOKENIZE_PATH,
    EMBEDDINGS_PATH,
    MESSAGES_PATH,
    RERANK_PATH,
    RESPONSES_PATH,
    SCORE_PATH,
    TOKENIZE_PATH,
    TPOT_HEADER,
    TTFT_HEADER,
)
from fulcrum.gateway.api_formats.openapi_batches import batch_paths
from fulcrum.gateway.api_formats.openapi_schemas import ANTHROPIC_ERROR, schemas

Json = dict[str, Any]
PATH: Final = "/openapi.json"
_DAY_MILLISECONDS: Final = 86_400_000
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_PROMISE: Final = (
    "milliseconds that this request asks for instead of the cluster's promise. A tighter one counts, a looser one is "
    "ignored."
)
_REFUSALS: Final = {
    "400": "The request cannot be read, a parameter is wrong, or no pool of workers would ever take it (`NeverFits`).",
    "404": "Neither the model nor an adapter of `spec.adapters` has this name, or it is for other routes "
    "(`spec.model.task`).",
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
    "415": "The Content-Type is not application/json, or the body is compressed.",
    "417": "Only 100-continue can be expected.",
    "422": "The engine does not take a parameter.",
    "429": "It could not be served within its promise now, or the key is over its rate limit. Nothing was done for it.",
    "431": "The request's head is too large.",
    "501": "The engine cannot do this.",
    "500": "Each worker failed at it, while others are served; or the gateway failed.",
    "502": "Several workers failed to serve it.",
    "503": "No worker is ready or has loaded the adapter, the gateway holds as much as it may, or it is shutting down. "
    "Without `Retry-After` it is not worth asking again: no worker can load the adapter (`adapter_not_loaded`).",
    "504": "It took longer than the gateway waits.",
}
_EVERYWHERE: Final = ("400", "408", "413", "417", "429", "431", "503")
"""What a request's head or its arrival may be answered with, whatever it asks for."""


def document(*, guarded: bool | None = None, max_body_bytes: int | None = None, batches: bool = False) -> Json:
    """The document; `guarded` says whether keys are asked for (None: that is the cluster's choice).

    `batches`: files and batches are served, with `spec.batch`.
    """
    key: list[Json] = [{"apiKey": []}] if guarded is not False else []
    if not guarded:
        key.append({})
    limit = "" if max_body_bytes is None else f" A body has at most {max_body_bytes} bytes."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fulcrum gateway",
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "OpenAI-compatible inference over the workers of one cluster. Every answer has an "
            f"`x-request-id`; every error is an `Error`.{limit}",
        },
        "paths": {
            COMPLETIONS_PATH: {"post": _inference("createCompletion", "CompletionRequest", key, guarded)},
            CHAT_PATH: {"post": _inference("createChatCompletion", "ChatCompletionRequest", key, guarded)},
            RESPONSES_PATH: {"post": _inference("createResponse", "ResponsesRequest", key, guarded)},
            MESSAGES_PATH: {"post": _anthropic(_inference("createMessage", "MessagesRequest", key, guarded))},
            EMBEDDINGS_PATH: {"post": _pooling("createEmbedding", "EmbeddingRequest", key, guarded)},
            SCORE_PATH: {"post": _pooling("createScore", "ScoreRequest", key, guarded)},
            RERANK_PATH: {"post": _pooling("createRerank", "RerankRequest", key, guarded)},
            COUNT_TOKENS_PATH: {"post": _anthropic(_tokenizing("countTokens", "CountTokensRequest", key, guarded))},
            TOKENIZE_PATH: {"post": _tokenizing("tokenize", "TokenizeRequest", key, guarded)},
            DETOKENIZE_PATH: {"post": _tokenizing("detokenize", "DetokenizeRequest", key, guarded)},
            **(batch_paths(key) if batches else {}),
            "/v1/models": {
                "get": _get(
                    "listModels",
                    "The served model, then its LoRA adapters: `parent` is the model.",
                    "ModelList",
                    key,
                    guarded,
                )
            },
            "/v1/models/{model}": {
                "get": {
                    **_get("getModel", "The served model, or a LoRA adapter of it.", "Model", key, guarded, "404"),
                    "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
                }
            },
            "/health": {"get": _probe("health", "200 while the process lives.")},
            "/ready": {
                "get": _probe(
                    "ready",
                    "200 once the workers are known, be they none; 503 with why before that and after SIGTERM.",
                )
            },
            PATH: {"get": _get("openapi", "This document.", "Document", [{}], False)},
        },
        "components": {
            "schemas": schemas(),
            "headers": _headers(),
            "responses": {
                f"{schema}{code}": _error(code, text, schema)
                for schema in ("Error", ANTHROPIC_ERROR)
                for code, text in (*_REFUSALS.items(), _KEY)
            },
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of the cluster's Secret, or the same as `x-api-key`. It may have a class and "
                    "rate limits.",
                }
            },
        },
    }


_KEY: Final = ("401", "A valid API key is required.")


def _anthropic(operation: Json) -> Json:
    """The same operation where errors are Anthropic's."""
    responses = operation["responses"]
    for code in responses.keys() - {"200"}:
        responses[code] = {"$ref": f"#/components/responses/{ANTHROPIC_ERROR}{code}"}
    return operation


def _refusals(codes: tuple[str, ...], guarded: bool | None) -> Json:
    named = (*codes, *(() if guarded is False else ("401",)))
    return {code: {"$ref": f"#/components/responses/Error{code}"} for code in sorted(named)}


def _header(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}


def _inference(operation: str, request: str, security: list[Json], guarded: bool | None) -> Json:
    headers = {name: _header(name) for name in ("x-request-id", "x-fulcrum-path", "x-fulcrum-degraded")}
    return {
        "operationId": operation,
        "security": security,
        "parameters": [
            _parameter(TTFT_HEADER, f"Time to first token: {_PROMISE}"),
            _parameter(TPOT_HEADER, f"Time per output token: {_PROMISE}"),
            {
                "name": "x-request-id", "in": "header", "schema": {"type": "string"},
                "description": "Returned, and sent to the workers, if it has at most 128 of `A-Za-z0-9._-`.",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{request}"}}},
        },
        "responses": {
            "200": {
                "description": "The answer of a worker; with `stream`, as server-sent events with the API's end mark "
                "(`[DONE]`, `response.completed`, `message_stop`). A stream that fails has an error event instead.",
                "headers": headers,
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
                    "text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}},
                },
            },
            **_refusals(tuple(_REFUSALS), guarded),
        },
    }  # fmt: skip


def _pooling(operation: str, request: str, security: list[Json], guarded: bool | None) -> Json:
    """What a pooling model answers."""
    promise = _parameter(TTFT_HEADER, f"Time to the answer: {_PROMISE}")
    return {**_tokenizing(operation, request, security, guarded), "parameters": [promise]}


def _tokenizing(operation: str, request: str, security: list[Json], guarded: bool | None) -> Json:
    """What any one worker answers, as a whole."""
    return {
        "operationId": operation,
        "security": security,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{request}"}}},
        },
        "responses": {
            "200": {
                "description": "The answer of a worker.",
                "headers": {name: _header(name) for name in ("x-request-id", "x-fulcrum-path")},
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}},
            },
            **_refusals(tuple(_REFUSALS), guarded),
        },
    }


def _parameter(name: str, description: str) -> Json:
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": _DAY_MILLISECONDS}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _get(
    operation: str, description: str, schema: str, security: list[Json], guarded: bool | None, *codes: str
) -> Json:
    return {
        "operationId": operation,
        "security": security,
        "responses": {
            "200": {
                "description": description,
                "headers": {"x-request-id": _header("x-request-id")},
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
            },
            **_refusals((*_EVERYWHERE, *codes), guarded),
        },
    }


def _probe(operation: str, description: str) -> Json:
    responses = _refusals(_EVERYWHERE, guarded=False)
    if operation == "ready":
        both = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}, **_TEXT}
        responses["503"] = {"description": "Not ready: why.", "content": both}
    return {
        "operationId": operation,
        "responses": {"200": {"description": description, "content": _TEXT}, **responses},
    }


def _error(code: str, description: str, schema: str) -> Json:
    headers = ["x-request-id"]
    if code in ("400", "429", "500", "502", "503", "504"):
        headers.append("x-fulcrum-rejected")
    if code in ("429", "502", "503", "504"):
        headers += ["retry-after", "retry-after-ms"]
    if code == "503":
        headers.append("x-should-retry")
    if code == "401":
        headers.append("www-authenticate")
    return {
        "description": description,
        "headers": {name: _header(name) for name in headers},
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _headers() -> Json:
    reasons = sorted(
        {
            *REJECTIONS,
            Reason.NOTHING_IDLE,
            Reason.RATE_LIMITED,
            Reason.UPSTREAM_FAILED,
            Reason.ENGINE_ERROR,
            Reason.TIMED_OUT,
            Reason.NEVER_FITS,
        }
    )
    shapes: dict[str, tuple[str, Json]] = {
        "x-request-id": ("The client's, or a new one.", {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}),
        "x-fulcrum-path": ("The workers that served it: `PREFILL,DECODE`, or one that did both.", {"type": "string"}),
        "x-fulcrum-degraded": (
            "What its class gave up, as the cluster was saturated: `max-output-tokens=N`; absent: nothing.",
            {"type": "string"},
        ),
        "x-fulcrum-rejected": (
            "Why it was turned away.",
            {"type": "string", "enum": [str(reason) for reason in reasons]},
        ),
        "retry-after": ("Seconds until it would be let in, rounded up.", {"type": "integer", "minimum": 1}),
        "retry-after-ms": ("The same in milliseconds, where seconds are not exact.", {"type": "integer", "minimum": 1}),
        "x-should-retry": (
            "`false` where asking again does not help, which the status does not tell.",
            {"type": "string", "const": "false"},
        ),
        "www-authenticate": ("How to authenticate.", {"type": "string", "const": "Bearer"}),
    }
    return {name: {"description": text, "schema": schema} for name, (text, schema) in shapes.items()}
