"""One request on its way, and what is known of it."""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.api_formats.inference_request import InferenceRequest, Usage
from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.dispatch.client_stream import ClientStream
from fulcrum.gateway.dispatch.held_prefill import HeldPrefill
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.dispatch.stream_log import StreamLog
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import StreamSink
from fulcrum.gateway.tracing.trace import RequestTrace
from fulcrum.gateway.workers.registry import KnownWorker
from fulcrum.routing import Flight, Incoming

MAX_ATTEMPTS: Final = 3
"""Attempts in a row without a token; then the gateway gives up."""


class Exchange:
    """One request on its way, and what is known of it when it ends."""

    __slots__ = (
        "accused", "attempts", "broken", "deadline", "first_token_at", "flight", "fruitless", "held",
        "incoming", "key", "lost_at", "output_tokens", "path", "prompt_ids", "prompt_tokens", "qos_class", "request",
        "response", "route", "sink", "started_at", "stream", "stream_log", "tokens_before", "trace",
        "woken",
    )  # fmt: skip

    def __init__(self, *, route: str, response: Response, started_at: float, deadline: float, qos_class: str) -> None:
        self.route = route
        self.response = response
        self.started_at = started_at
        self.deadline = deadline
        self.qos_class = qos_class
        self.request: InferenceRequest | None = None
        """None while (and if never) the body could be read."""
        self.key: ApiKey | None = None
        self.incoming: Incoming | None = None
        self.flight: Flight | None = None
        """Of the last attempt."""
        self.attempts = 0
        self.accused: list[LegFailedError] = []
        """Failures that may be its own fault, until another worker serves it."""
        self.broken: list[KnownWorker] = []
        """Workers whose connections broke before a token was sent."""
        self.held: HeldPrefill | None = None
        """Its KV, while the prefill worker holds it for the first worker that pulls it."""
        self.stream: ClientStream | None = None
        """Passes its stream on; None: its answer comes as one."""
        self.sink: StreamSink | None = None
        """What takes the stream of this attempt: `stream`, or what goes on with it."""
        self.stream_log: StreamLog | None = None
        """What its client was sent of a stream; None where that cannot be resumed."""
        self.prompt_ids: list[int] | None = None
        """Token ids of the prompt; known only of a stream that is being resumed."""
        self.fruitless = 0
        """Attempts in a row that made no token."""
        self.tokens_before = 0
        """Tokens of its stream when this attempt began."""
        self.lost_at = 0.0
        """Loop time at which its stream lost its worker; 0: it has one."""
        self.path = "-"
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.first_token_at = 0.0
        """Loop time; 0 while unknown."""
        self.woken = False
        """It was held until a worker ran."""
        self.trace: RequestTrace | None = None
        """None: no request is traced here."""

    def note_usage(self, usage: Usage | None, *, output: bool) -> None:
        """Take over what an engine reports."""
        if usage is not None:
            if (read_tokens := usage.read_tokens) is not None:
                self.prompt_tokens = read_tokens
            if output and (made_tokens := usage.made_tokens) is not None:
                self.output_tokens = made_tokens

    def streamed_tokens(self, *, done: bool = False) -> int:
        """Tokens that its client was sent of a stream whose engine did not say; `done`: it ended with `[DONE]`."""
        self.response.stream_end()
        stream_log = self.stream_log
        if stream_log is not None:
            stream_log.read()
            if stream_log.ids:
                return len(stream_log.ids)
        if self.request is None:
            return 0
        most = max(self.response.events - done, 0) * self.request.stream_interval
        return most if self.request.max_tokens is None or self.request.whole else min(most, self.request.max_tokens)

    def tokens_so_far(self) -> int:
        """Tokens that its client was sent while it is under way, as events tell; of an answer that comes as one: 0."""
        if self.output_tokens is not None:
            return self.output_tokens
        interval = self.request.stream_interval if self.request is not None else 1
        return self.tokens_before + self.response.events_so_far() * interval
