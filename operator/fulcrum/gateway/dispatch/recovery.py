"""A stream that lost its worker goes on with another: what is left of it, on which worker, and when to give up."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec

from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, InferenceRequest, wants_every_usage
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.blame import Blame
from fulcrum.gateway.dispatch.continuation import Continuation, Restart
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.leg import LegSender
from fulcrum.gateway.dispatch.leg_deadlines import late_seconds
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.dispatch.resume import (
    greedy,
    obstacle,
    probe_body,
    prompt_ids,
    rest_request,
    resume_point,
    tokenize_body,
)
from fulcrum.gateway.dispatch.stream_log import StreamLog
from fulcrum.gateway.errors import RequestError, upstream_failed
from fulcrum.gateway.http.upstream_answer import StreamSink
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import KnownRank, WorkerRegistry
from fulcrum.routing import Incoming, Route

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 30.0
"""Longest wait of a begun stream for a worker that can take it over: its client has a part of the answer already."""
PROBE_SECONDS: Final = 30.0
"""Least silence of a worker that is to return a prompt's token ids, which costs a prefill, before another worker is
asked."""
_POLL_SECONDS: Final = 0.1
_OK: Final = 200
_LEAST_OUTPUT_TOKENS: Final = 16.0


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Recovery:
    """Resumes streams."""

    def __init__(
        self,
        *,
        blame: Blame,
        legs: LegSender,
        admission: AdmissionControl,
        registry: WorkerRegistry,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._blame = blame
        self._legs = legs
        self._admission = admission
        self._registry = registry
        self._metrics = metrics
        self._loop = loop

    def lost(
        self, exchange: Exchange, request: InferenceRequest, incoming: Incoming, failed: LegFailedError
    ) -> Incoming:
        """The stream of `exchange` lost its worker: what is left to ask for. Raises RequestError if it cannot go on."""
        stream = exchange.stream
        if stream is not None and stream.stream_log is not None:
            stream.stream_log.read()
            stream.stream_log = None  # from here on it is kept event by event
        stream_log = exchange.stream_log
        why_not = "its answer has more in it than text, comes in several parts, or does not tell its tokens"
        if stream_log is not None:
            why_not = stream_log.why_not or obstacle(request)
        if stream_log is None or why_not:
            raise self._impossible(why_not) from failed
        if not exchange.lost_at:
            exchange.lost_at = self._loop.time()
            logger.warning(
                "stream_lost id=%s cause=%s tokens=%d",
                exchange.response.request_id.decode(),
                failed,
                len(stream_log.ids),
            )
        made = len(stream_log.ids)
        if made > exchange.tokens_before:
            exchange.fruitless = 0
        exchange.tokens_before = made
        asked = exchange.incoming or incoming
        return msgspec.structs.replace(
            incoming,
            prompt_tokens=asked.prompt_tokens + made,
            output_tokens=max(asked.output_tokens - made, _LEAST_OUTPUT_TOKENS),
        )

    async def detour(
        self, exchange: Exchange, incoming: Incoming, tried: frozenset[str], slow: frozenset[str]
    ) -> Route:
        """Another path; a stream that has begun waits for one. Raises RequestError where there is none.

        `slow`: workers of `tried` that only kept the request waiting. They are asked again if no other takes it.
        """
        until = min(exchange.deadline, exchange.lost_at + WAIT_SECONDS)
        while True:
            now = self._loop.time()
            found = self._admission.detour(incoming, tried, now)
            if found is None and slow:
                found = self._admission.detour(incoming, tried - slow, now)
            if found is not None:
                return found
            if not exchange.response.started or now >= until:
                raise self._blame.gave_up(exchange, "No worker could serve the request. Retry it.")
            await asyncio.sleep(_POLL_SECONDS)
            # One that was restarted, or has had its pause, may be tried again.
            tried = frozenset(
                worker.name for worker in self._registry.workers if worker.name in tried and worker.suspect
            )

    async def rest(
        self, exchange: Exchange, request: InferenceRequest, rank: KnownRank
    ) -> tuple[InferenceRequest, StreamSink] | None:
        """What is left of the stream, to be prefilled on `rank`; None: only its end was, and the client has it now.

        Raises LegFailedError when its worker fails, RequestError when the stream cannot go on.
        """
        stream, stream_log = exchange.stream, exchange.stream_log
        if stream is None or stream_log is None:
            raise self._impossible("nothing of it was kept")
        if not stream_log.ids and not stream_log.chars and stream_log.finish_reason is None:
            return request, Restart(stream, stream_log, began=partial(self._resumed, exchange))
        wants_usage = not stream.hides_usage
        if exchange.prompt_ids is None and (
            stream_log.finish_reason is None or (wants_usage and exchange.prompt_tokens is None)
        ):
            exchange.prompt_ids = await self._probe(exchange, request, rank)
        if exchange.prompt_ids is not None:
            exchange.prompt_tokens = len(exchange.prompt_ids)
        again = "" if stream_log.finish_reason is not None else await self._rewind(exchange, request, rank, stream_log)
        exchange.tokens_before = len(stream_log.ids)
        sink = Continuation(
            exchange.response,
            stream_log,
            chat=request.path == CHAT_PATH,
            again=again,
            prompt_tokens=exchange.prompt_tokens or 0,
            wants_usage=wants_usage,
            wants_every_usage=wants_usage and wants_every_usage(request),
            began=partial(self._resumed, exchange),
        )
        if stream_log.finish_reason is not None:
            sink.finish()
        elif (left := rest_request(request, exchange.prompt_ids or [], stream_log)).max_tokens == 0:
            sink.finish_with("length")
        else:
            return left, sink
        self._resumed(exchange)
        self.ended(exchange)
        return None

    def ended(self, exchange: Exchange) -> None:
        """A stream that was resumed has ended well."""
        stream_log = exchange.stream_log
        if stream_log is not None:
            stream_log.read()
            exchange.output_tokens = len(stream_log.ids)
            if exchange.prompt_ids is not None:
                exchange.prompt_tokens = len(exchange.prompt_ids)

    def _resumed(self, exchange: Exchange) -> None:
        gap_seconds = self._loop.time() - exchange.lost_at
        exchange.lost_at = 0.0
        self._metrics.resumes["resumed"] += 1
        self._metrics.resume_gap_seconds.observe(gap_seconds)
        logger.info(
            "stream_resumed id=%s path=%s attempt=%d gap_seconds=%.3f",
            exchange.response.request_id.decode(), exchange.path, exchange.attempts, gap_seconds,
        )  # fmt: skip

    async def _rewind(
        self, exchange: Exchange, request: InferenceRequest, rank: KnownRank, stream_log: StreamLog
    ) -> str:
        """Go back to where the stream can go on; text from there on that the client has already got."""
        point = resume_point(request, stream_log)
        if point is None:
            raise self._impossible("too much of it was held back for stop strings")
        if stream_log.logprobs and point.tokens < len(stream_log.ids) and not greedy(request):
            raise self._impossible("its last tokens, whose log probabilities were sent, would be sampled again")
        stream_log.rewind(point.tokens, point.chars)
        if not point.again or greedy(request):
            return point.again
        # Another sample would not repeat this text, so it is taken for granted, by its likeliest tokens.
        body = tokenize_body(request, point.again)
        answer = await self._leg(exchange, rank, "/tokenize", body)
        try:
            stream_log.ids.extend(msgspec.json.decode(answer, type=_Tokens).tokens)
        except msgspec.DecodeError:
            raise self._impossible("a worker did not tell the tokens of its text") from None
        stream_log.ids_sent = len(stream_log.ids)
        stream_log.rewind(len(stream_log.ids), stream_log.chars)
        return ""

    async def _probe(self, exchange: Exchange, request: InferenceRequest, rank: KnownRank) -> list[int]:
        found = prompt_ids(await self._leg(exchange, rank, request.path, probe_body(request)))
        if found is None:
            raise self._impossible("a worker did not tell the tokens of its prompt")
        return found

    async def _leg(self, exchange: Exchange, rank: KnownRank, path: str, body: bytes) -> bytes:
        predicted_seconds = exchange.flight.route.ttft_seconds if exchange.flight is not None else 0.0
        answer = await self._legs.send(
            "resume", exchange, rank, path, body,
            silence_seconds=max(late_seconds(predicted_seconds), PROBE_SECONDS),
        )  # fmt: skip
        if answer.status != _OK:
            raise self._impossible(f"a worker answered {answer.status} when asked for the prompt's tokens")
        return answer.body

    def _impossible(self, why: str) -> RequestError:
        self._metrics.resumes["impossible"] += 1
        return upstream_failed(
            f"The worker was lost in the middle of the answer, and no other can go on with it: {why}. "
            "Retry the request."
        )
