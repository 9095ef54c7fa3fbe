"""One request on its way, and what is counted of it when it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.dispatch.admit import FrontDoor
from fulcrum.gateway.dispatch.api_keys import ApiKey
from fulcrum.gateway.dispatch.held_prefill import HeldPrefill
from fulcrum.gateway.dispatch.legs import LegFailedError
from fulcrum.gateway.http.response import Reply
from fulcrum.gateway.http.upstream_answer import StreamSink
from fulcrum.gateway.metrics.class_metrics import ClassMetrics
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.metrics.slo import judge_latency, judge_refusal
from fulcrum.gateway.openai.errors import RequestError
from fulcrum.gateway.openai.inference_request import Job, Usage
from fulcrum.gateway.openai.stream_log import SentStream
from fulcrum.routing import Flight, Incoming

logger = logging.getLogger(__name__)

# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_TOO_MANY: Final = 429
_CLIENT_CLOSED: Final = 499
_SERVER_ERRORS: Final = 500
_LEARN_EVERY: Final = 4
"""One answered request of so many teaches the bytes of a token: it costs half a microsecond."""


class Call:
    """One request on its way, and what is known of it when it ends."""

    __slots__ = (
        "accused", "attempts", "deadline", "expected_tokens", "first_token_at", "flight", "fruitless", "held",
        "incoming", "job", "key", "lost_at", "output_tokens", "path", "prompt_ids", "prompt_tokens", "qos_class",
        "reply", "route", "sent", "sink", "started_at", "tokens_before",
    )  # fmt: skip

    def __init__(self, *, route: str, reply: Reply, started_at: float, deadline: float, qos_class: str) -> None:
        self.route = route
        self.reply = reply
        self.started_at = started_at
        self.deadline = deadline
        self.qos_class = qos_class
        self.job: Job | None = None
        """None while (and if never) the body could be read."""
        self.key: ApiKey | None = None
        self.incoming: Incoming | None = None
        self.flight: Flight | None = None
        """Of the last attempt."""
        self.attempts = 0
        self.accused: list[LegFailedError] = []
        """Failures that may be its own fault, until another worker serves it."""
        self.held: HeldPrefill | None = None
        """Its KV, while the prefill worker holds it for whoever pulls it first."""
        self.sink: StreamSink | None = None
        """Who takes its stream; None: its answer comes as one."""
        self.sent: SentStream | None = None
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
        self.expected_tokens = 0.0
        """Output tokens that were expected of it when it came; 0: nobody knew."""
        self.first_token_at = 0.0
        """Loop time; 0 while unknown."""

    def note_usage(self, usage: Usage | None, *, output: bool) -> None:
        """Take over what an engine reports."""
        if usage is not None:
            if usage.prompt_tokens is not None:
                self.prompt_tokens = usage.prompt_tokens
            if output and usage.completion_tokens is not None:
                self.output_tokens = usage.completion_tokens

    def streamed_tokens(self, *, done: bool = False) -> int:
        """Tokens that its client was sent of a stream whose engine did not say; `done`: it ended with `[DONE]`."""
        self.reply.stream_end()
        sent = self.sent
        if sent is not None:
            sent.read()
            if sent.ids:
                return len(sent.ids)
        if self.job is None:
            return 0
        most = max(self.reply.events - done, 0) * self.job.stream_interval
        return most if self.job.max_tokens is None or self.job.whole else min(most, self.job.max_tokens)


class Accounts:
    """Counts calls, judges them by the promise, and lets admission learn from them."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        door: FrontDoor,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        access_log: bool,
    ) -> None:
        self._slo_ttft_seconds = config.slo_ttft_seconds
        self._slo_tpot_seconds = config.slo_tpot_seconds
        self.has_slo = self._slo_ttft_seconds is not None or self._slo_tpot_seconds is not None
        self._door = door
        self._metrics = metrics
        self._loop = loop
        self._access_log = access_log
        self._turn = 0

    def arrived(self, call: Call, incoming: Incoming) -> None:
        """A request came that could be read."""
        counts = self._metrics.of_class(call.qos_class)
        counts.arrivals += 1
        counts.arrived_prompt_tokens.add(incoming.prompt_tokens)
        counts.arrived_prompt_tokens_squared.add(incoming.prompt_tokens * incoming.prompt_tokens)
        call.expected_tokens = self._door.admission.mean_outputs.expect(incoming.qos, incoming.prompt_tokens)
        if call.expected_tokens > 0:
            counts.arrived_output_tokens.add(call.expected_tokens)

    def close(self, call: Call, error: RequestError | None) -> None:
        """The call is over, with `error` if that is how it was answered."""
        duration_seconds = self._loop.time() - call.started_at
        reason = error.reason.value if error is not None and error.reason is not None else ""
        code = error.status.value if error is not None else int(call.reply.status)
        metrics = self._metrics
        metrics.requests[call.route, code, reason, call.qos_class] += 1
        metrics.duration_seconds.observe(duration_seconds)
        counts = metrics.of_class(call.qos_class)
        if call.job is not None:
            self._prompt(call, call.job, counts)
            if call.key is not None and call.incoming is not None:
                call.key.correct(_used(call, code) - call.incoming.prompt_tokens - call.incoming.output_tokens)
            if error is None and code == _OK:
                self._answer(call, call.job, counts, duration_seconds)
            elif self.has_slo and (refused := judge_refusal(code, reason)) is not None:
                counts.slo[refused] += 1
        level = logging.WARNING if code >= _SERVER_ERRORS else logging.INFO
        if self._access_log or level > logging.INFO:
            logger.log(
                level,
                "request id=%s route=%s class=%s code=%d reason=%s path=%s attempts=%d seconds=%.4f prompt_tokens=%s "
                "output_tokens=%s",
                call.reply.request_id.decode(), call.route, call.qos_class, code, reason or "-", call.path,
                call.attempts, duration_seconds, call.prompt_tokens, call.output_tokens,
            )  # fmt: skip

    def _prompt(self, call: Call, job: Job, counts: ClassMetrics) -> None:
        """Prompt length of any request that could be read: those that were turned away are load too."""
        self._turn += 1
        if call.prompt_tokens is not None:
            if self._turn % _LEARN_EVERY == 0:
                self._door.learn_prompt(job, call.prompt_tokens)
        elif call.incoming is not None:
            call.prompt_tokens = int(call.incoming.prompt_tokens)
        else:
            return
        counts.prompt_tokens.observe(call.prompt_tokens)
        if call.incoming is not None:
            counts.expected_prompt_tokens.add(call.incoming.prompt_tokens)

    def _answer(self, call: Call, job: Job, counts: ClassMetrics, duration_seconds: float) -> None:
        output_tokens = call.output_tokens
        ttft_seconds = tpot_seconds = None
        if output_tokens is not None:
            counts.output_tokens.observe(output_tokens)
            if call.expected_tokens > 0:
                counts.expected_output_tokens.add(call.expected_tokens)
        if call.first_token_at:
            ttft_seconds = call.first_token_at - call.started_at
            counts.ttft_seconds.observe(ttft_seconds)
            # Several sequences in one answer (`whole`) share their time: nothing is known of each one's pace.
            if output_tokens is not None and output_tokens > 1 and not job.whole:
                tpot_seconds = (duration_seconds - ttft_seconds) / (output_tokens - 1)
                counts.tpot_seconds.observe(tpot_seconds)
        if self.has_slo and (asked := call.incoming) is not None:
            outcome = judge_latency(
                ttft_seconds=ttft_seconds,
                tpot_seconds=tpot_seconds,
                slo_ttft_seconds=_tighter(self._slo_ttft_seconds, asked.ttft_seconds),
                slo_tpot_seconds=_tighter(self._slo_tpot_seconds, asked.tpot_seconds),
            )
            if outcome is not None:
                counts.slo[outcome] += 1
        # The pace of a client that does not keep up is its own; that of a resumed stream is of several workers.
        pace_seconds = None if call.reply.slowed or call.attempts > 1 else tpot_seconds
        if call.flight is not None and (self._door.decides or self._turn % _LEARN_EVERY == 0):
            self._door.admission.learn(
                call.flight,
                # Later attempts waited for what the first one lost.
                ttft_seconds=ttft_seconds if call.attempts == 1 else None,
                tpot_seconds=pace_seconds,
                output_tokens=output_tokens,
            )
            if self._turn % _LEARN_EVERY == 0:
                self._door.cluster.served(
                    call.flight,
                    ttft_seconds=ttft_seconds if call.attempts == 1 else None,
                    tpot_seconds=pace_seconds,
                )


def _used(call: Call, code: int) -> float:
    """Tokens that a request came to."""
    if code == _TOO_MANY or call.incoming is None:
        return 0  # what was turned away has used nothing
    output: float | None = call.output_tokens
    if output is None:
        if call.reply.streaming:
            output = call.streamed_tokens()
        else:
            # A client that leaves before the answer has had the work all the same.
            output = call.incoming.output_tokens if code == _CLIENT_CLOSED and call.flight is not None else 0
    return (call.prompt_tokens or 0) + output


def _tighter(promise_seconds: float | None, asked_seconds: float) -> float | None:
    """A request may ask for more than is promised to all, never for less."""
    return asked_seconds if promise_seconds is not None and asked_seconds < promise_seconds else promise_seconds
