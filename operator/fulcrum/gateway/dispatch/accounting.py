"""What is counted of a request when it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.api_formats.inference_request import InferenceRequest
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.recorder import Recorder
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.metrics.class_metrics import ClassMetrics, Sum
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.metrics.slo import UNREACHABLE, judge_latency, judge_refusal
from fulcrum.routing import Incoming

logger = logging.getLogger(__name__)

# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_TOO_MANY: Final = 429
_CLIENT_CLOSED: Final = 499
_SERVER_ERRORS: Final = 500
_LEARN_EVERY: Final = 4
"""One answered request in this many teaches the bytes of a token: learning costs 0.5 us."""


class Accounts:
    """Counts calls, judges them by the promise, and lets admission learn from them."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        admission: AdmissionControl,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        access_log: bool,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._slo_ttft_seconds = config.slo_ttft_seconds
        self._slo_tpot_seconds = config.slo_tpot_seconds
        self.has_slo = self._slo_ttft_seconds is not None or self._slo_tpot_seconds is not None
        self._admission = admission
        self._metrics = metrics
        self._loop = loop
        self._access_log = access_log
        self._count = 0

    def arrived(self, exchange: Exchange, incoming: Incoming) -> None:
        """A request came that could be read. One of a batch class is no load: no worker is to be started for it."""
        if self._recorder is not None:
            self._recorder.arrived(exchange)
        if self._admission.classes.batch[incoming.qos]:
            return
        counts = self._metrics.of_class(exchange.qos_class)
        counts.arrivals += 1
        counts.arrived_prompt_tokens.add(incoming.prompt_tokens)
        counts.arrived_prompt_tokens_squared.add(incoming.prompt_tokens * incoming.prompt_tokens)
        self._expect(counts.arrived_output_tokens, incoming)

    def _expect(self, tokens: Sum, incoming: Incoming) -> None:
        """Count what is expected now of such an answer; nothing while nothing is known of any."""
        expected_tokens = self._admission.core.learnt.outputs.mean(incoming.qos, incoming.prompt_tokens)
        if expected_tokens > 0:
            tokens.add(expected_tokens)

    def close(self, exchange: Exchange, error: RequestError | None) -> None:
        """The call is over, with `error` if that is how it was answered."""
        now = self._loop.time()
        duration_seconds = now - exchange.started_at
        reason = error.reason.value if error is not None and error.reason is not None else ""
        code = error.status.value if error is not None else int(exchange.response.status)
        if self._recorder is not None:
            self._recorder.ended(exchange, code, error, now)
        metrics = self._metrics
        metrics.requests[exchange.route, code, reason, exchange.qos_class] += 1
        trace_id = exchange.trace.trace_id if exchange.trace is not None else ""
        metrics.duration_seconds.observe(duration_seconds, trace_id)
        counts = metrics.of_class(exchange.qos_class)
        if exchange.request is not None:
            adapter = exchange.request.adapter
            if adapter and (adapter, _OK) in metrics.adapter_requests:  # no label is a client's to make up
                metrics.adapter_requests[adapter, code] += 1
        if exchange.incoming is not None and self._admission.classes.batch[exchange.incoming.qos]:
            self._batch(exchange, counts, code)
        elif exchange.request is not None:
            self._prompt(exchange, exchange.request, counts)
            if exchange.key is not None and exchange.incoming is not None:
                exchange.key.correct(
                    _used(exchange, code) - exchange.incoming.prompt_tokens - exchange.incoming.output_tokens
                )
            if error is None and code == _OK:
                self._answer(exchange, exchange.request, counts, duration_seconds, trace_id)
            elif self.has_slo and (refused := judge_refusal(code, reason)) is not None:
                asks = exchange.incoming is not None and self._asks_more(exchange.incoming)
                if asks:
                    counts.slo_asked[refused] += 1
                if not (asks and reason in UNREACHABLE):
                    counts.slo[refused] += 1
        level = logging.WARNING if code >= _SERVER_ERRORS else logging.INFO
        if self._access_log or level > logging.INFO:
            logger.log(
                level,
                "request id=%s route=%s class=%s code=%d reason=%s path=%s attempts=%d seconds=%.4f prompt_tokens=%s "
                "output_tokens=%s%s",
                exchange.response.request_id.decode(), exchange.route, exchange.qos_class, code, reason or "-",
                exchange.path, exchange.attempts, duration_seconds, exchange.prompt_tokens, exchange.output_tokens,
                f" trace={trace_id}" if trace_id else "",
            )  # fmt: skip

    def _batch(self, exchange: Exchange, counts: ClassMetrics, code: int) -> None:
        """Count a batch request: its tokens apart from those that are load, and no promise that it could have missed.

        Admission learns the length of its answer.
        """
        incoming = exchange.incoming
        assert incoming is not None
        if exchange.key is not None:
            exchange.key.correct(_used(exchange, code) - incoming.prompt_tokens - incoming.output_tokens)
        output_tokens = exchange.output_tokens
        if code != _OK or output_tokens is None:
            return
        counts.batch_output_tokens += output_tokens
        if exchange.flight is not None:
            self._admission.core.learnt.learn(exchange.flight, output_tokens=output_tokens)

    def _prompt(self, exchange: Exchange, request: InferenceRequest, counts: ClassMetrics) -> None:
        """Prompt length of any request that could be read: one that was turned away is load too."""
        self._count += 1
        if exchange.prompt_tokens is not None:
            if self._count % _LEARN_EVERY == 0:
                self._admission.learn_prompt(request, exchange.prompt_tokens)
        elif exchange.incoming is not None:
            exchange.prompt_tokens = int(exchange.incoming.prompt_tokens)
        else:
            return
        counts.prompt_tokens.observe(exchange.prompt_tokens)
        if exchange.incoming is not None:
            counts.expected_prompt_tokens.add(exchange.incoming.prompt_tokens)

    def _answer(
        self,
        exchange: Exchange,
        request: InferenceRequest,
        counts: ClassMetrics,
        duration_seconds: float,
        trace_id: str,
    ) -> None:
        output_tokens = exchange.output_tokens
        ttft_seconds = tpot_seconds = None
        if output_tokens is not None:
            counts.output_tokens.observe(output_tokens)
            # As of now, and not of its arrival: what comes now is expected by what is known now, too.
            if exchange.incoming is not None:
                self._expect(counts.expected_output_tokens, exchange.incoming)
        if exchange.first_token_at:
            ttft_seconds = exchange.first_token_at - exchange.started_at
            counts.ttft_seconds.observe(ttft_seconds, trace_id)
            # Several sequences in one answer (`whole`) share their time: nothing is known of each one's pace.
            if output_tokens is not None and output_tokens > 1 and not request.whole:
                tpot_seconds = (duration_seconds - ttft_seconds) / (output_tokens - 1)
                counts.tpot_seconds.observe(tpot_seconds, trace_id)
        if self.has_slo:
            self._judge(exchange, counts, ttft_seconds, tpot_seconds)
        # The pace of a client that does not keep up is its own; that of a resumed stream is of several workers.
        pace_seconds = None if exchange.response.slowed or exchange.attempts > 1 else tpot_seconds
        # Later attempts waited for what the first one lost.
        first_seconds = ttft_seconds if exchange.attempts == 1 else None
        flight = exchange.flight
        if flight is not None and (self._admission.decides or self._count % _LEARN_EVERY == 0):
            self._admission.core.learnt.learn(
                flight, ttft_seconds=first_seconds, tpot_seconds=pace_seconds, output_tokens=output_tokens
            )
            if self._count % _LEARN_EVERY == 0:
                flight.served(ttft_seconds=first_seconds, tpot_seconds=pace_seconds)

    def _judge(
        self, exchange: Exchange, counts: ClassMetrics, ttft_seconds: float | None, tpot_seconds: float | None
    ) -> None:
        """Judge an answer by what is promised to all, and one that asked for more by that as well."""
        slo_ttft_seconds, slo_tpot_seconds = self._slo_ttft_seconds, self._slo_tpot_seconds
        outcome = judge_latency(
            ttft_seconds=ttft_seconds,
            tpot_seconds=tpot_seconds,
            slo_ttft_seconds=slo_ttft_seconds,
            slo_tpot_seconds=slo_tpot_seconds,
        )
        if outcome is not None:
            counts.slo[outcome] += 1
        if (asked := exchange.incoming) is None or not self._asks_more(asked):
            return
        outcome = judge_latency(
            ttft_seconds=ttft_seconds,
            tpot_seconds=tpot_seconds,
            slo_ttft_seconds=_tighter(slo_ttft_seconds, asked.ttft_seconds),
            slo_tpot_seconds=_tighter(slo_tpot_seconds, asked.tpot_seconds),
        )
        if outcome is not None:
            counts.slo_asked[outcome] += 1

    def _asks_more(self, asked: Incoming) -> bool:
        """Whether a request asks for more than is promised to all."""
        return (self._slo_ttft_seconds is not None and asked.ttft_seconds < self._slo_ttft_seconds) or (
            self._slo_tpot_seconds is not None and asked.tpot_seconds < self._slo_tpot_seconds
        )


def _used(exchange: Exchange, code: int) -> float:
    """Tokens that a request came to."""
    if code == _TOO_MANY or exchange.incoming is None:
        return 0  # what was turned away has used nothing
    if exchange.request is not None and exchange.request.pools:
        return exchange.prompt_tokens or 0
    output: float | None = exchange.output_tokens
    if output is None:
        if exchange.response.streaming:
            output = exchange.streamed_tokens()
        else:
            # A client that leaves before the answer has had the work all the same, and so has one whose engine does not
            # say what it was.
            worked = code in (_CLIENT_CLOSED, _OK) and exchange.flight is not None
            output = exchange.incoming.output_tokens if worked else 0
    return (exchange.prompt_tokens or 0) + output


def _tighter(promise_seconds: float | None, asked_seconds: float) -> float | None:
    """A request may ask for more than is promised to all, never for less."""
    return asked_seconds if promise_seconds is not None and asked_seconds < promise_seconds else promise_seconds
