"""What spans say of a request and its legs: GenAI semantic conventions of OpenTelemetry where they have a name."""

from __future__ import annotations

from typing import Final

from fulcrum.api.reasons import REJECTIONS
from fulcrum.gateway.api_formats.inference_request import COMPLETIONS_PATH, POOLING_PATHS, TOKENIZING_PATHS
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.http.upstream_answer import Answer
from fulcrum.gateway.tracing.trace import Attributes
from fulcrum.gateway.workers.registry import KnownRank

_PROVIDER: Final = "vllm"


def operation(route: str) -> str:
    """Name of what a route does, as the conventions have it."""
    if route in TOKENIZING_PATHS:
        return "tokenize"
    if route in POOLING_PATHS:
        return route.rpartition("/")[2]
    return "text_completion" if route == COMPLETIONS_PATH else "chat"


def request_attributes(exchange: Exchange, model: str, code: int, error: RequestError | None) -> Attributes:
    """What is known of a request at its end; `code` is the status that its client got."""
    attributes: Attributes = {
        "gen_ai.operation.name": operation(exchange.route),
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model,
        "http.request.method": "POST",
        "http.route": exchange.route,
        "http.response.status_code": code,
        "fulcrum.request.id": exchange.response.request_id.decode(),
        "fulcrum.class": exchange.qos_class,
        "fulcrum.path": exchange.path,
        "fulcrum.attempts": exchange.attempts,
    }
    request = exchange.request
    if request is not None:
        attributes["gen_ai.request.stream"] = request.stream
        if request.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if exchange.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = exchange.prompt_tokens
    if exchange.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = exchange.output_tokens
    if exchange.incoming is not None:
        attributes["fulcrum.prompt.estimated_tokens"] = int(exchange.incoming.prompt_tokens)
        attributes["fulcrum.output.expected_tokens"] = int(exchange.incoming.output_tokens)
    if exchange.attempts:
        attributes["fulcrum.admission.decision"] = "admitted"
    if error is not None and error.reason is not None:
        attributes["fulcrum.reason"] = error.reason.value
        if error.reason in REJECTIONS:
            attributes["fulcrum.admission.decision"] = "rejected"
    if exchange.first_token_at:
        attributes["fulcrum.ttft.seconds"] = exchange.first_token_at - exchange.started_at
    _predicted(exchange, attributes)
    return attributes


def leg_attributes(exchange: Exchange, leg: str, rank: KnownRank) -> Attributes:
    """What is known of a leg as it begins."""
    record = rank.worker.record
    attributes: Attributes = {
        "fulcrum.leg": leg,
        "fulcrum.attempt": exchange.attempts,
        "fulcrum.worker.name": rank.worker.name,
        "fulcrum.worker.role": rank.worker.role.value,
        "fulcrum.resumes": exchange.response.started,
        "server.address": record.host,
        "server.port": record.port,
    }
    if rank.state.dp_rank is not None:
        attributes["fulcrum.worker.rank"] = rank.state.dp_rank
    _predicted(exchange, attributes)
    return attributes


def answer_attributes(answer: Answer, began_at: float) -> Attributes:
    """What its answer adds to a leg that began at `began_at` (loop time)."""
    attributes: Attributes = {"http.response.status_code": answer.status}
    if answer.first_byte_at:
        attributes["gen_ai.response.time_to_first_chunk"] = answer.first_byte_at - began_at
    return attributes


def _predicted(exchange: Exchange, attributes: Attributes) -> None:
    """What was predicted for the last attempt; nothing where the workers' speeds were unknown."""
    if exchange.flight is not None and exchange.flight.route.known:
        attributes["fulcrum.ttft.predicted_seconds"] = exchange.flight.route.ttft_seconds
        attributes["fulcrum.tpot.predicted_seconds"] = exchange.flight.route.tpot_seconds
