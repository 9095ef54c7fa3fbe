"""One leg: one request to one worker. Compiled (hatch_build.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import inf
from typing import Any

from fulcrum.gateway.api_formats.bodies import is_aborted
from fulcrum.gateway.dispatch.blame import Blame
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.dispatch.span_attributes import answer_attributes, leg_attributes
from fulcrum.gateway.http.upstream_answer import Answer, Excuse, Failure, StreamSink, UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.tracing.trace import RequestTrace
from fulcrum.gateway.workers.registry import KnownRank, WorkerRegistry

# A plain number: looking up a member of HTTPStatus costs half a microsecond.
_OK = 200
_SERVER_ERRORS = 500
_UNAUTHORIZED = 401


class LegSender:
    """Sends requests to workers."""

    def __init__(
        self, blame: Blame, registry: WorkerRegistry, metrics: Metrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._blame = blame
        self._registry = registry
        self._metrics = metrics
        self._loop = loop

    def send(
        self,
        leg: str,
        exchange: Exchange,
        rank: KnownRank,
        path: str,
        body: bytes,
        *,
        headers: bytes = b"",
        silence_seconds: float = inf,
        sink: StreamSink | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """The answer of `rank`, which may be an error of the client's. Raises LegFailedError.

        `headers`: further lines of the request's head, each ended by CRLF. The answer must be complete by the deadline
        of `exchange`. Another worker is to try when it, or a stream's first byte, has not come for `silence_seconds`,
        in which its worker has computed nothing either.
        """
        trace = exchange.trace
        if trace is not None:
            if trace.sampled:
                return self._send_traced(
                    leg, trace, exchange, rank, path,
                    body=body, headers=headers, silence_seconds=silence_seconds, sink=sink,
                )  # fmt: skip
            headers += trace.headers
        return self._send(leg, exchange, rank, path, body, headers=headers, silence_seconds=silence_seconds, sink=sink)

    async def _send_traced(
        self,
        leg: str,
        trace: RequestTrace,
        exchange: Exchange,
        rank: KnownRank,
        path: str,
        *,
        body: bytes,
        headers: bytes,
        silence_seconds: float,
        sink: StreamSink | None,
    ) -> Answer:
        span = trace.leg(leg, leg_attributes(exchange, leg, rank))
        began_at = self._loop.time()
        try:
            headers += span.headers
            answer = await self._send(
                leg, exchange, rank, path, body, headers=headers, silence_seconds=silence_seconds, sink=sink
            )
        except LegFailedError as failed:
            span.end({}, failed.failure.value)
            raise
        except asyncio.CancelledError:
            span.end({}, "cancelled")
            raise
        span.end(answer_attributes(answer, began_at), None if answer.status == _OK else str(answer.status))
        return answer

    async def _send(
        self,
        leg: str,
        exchange: Exchange,
        rank: KnownRank,
        path: str,
        body: bytes,
        *,
        headers: bytes,
        silence_seconds: float,
        sink: StreamSink | None,
    ) -> Answer:
        worker = rank.worker
        if worker.changed_at is not None:
            self._metrics.role_change_lag_seconds.observe(self._loop.time() - worker.changed_at)
            worker.changed_at = None
        request = rank.engine.request(path, exchange.response.request_id, body, headers)
        breaker = rank.state.health.breaker
        began_at, answers = self._loop.time(), breaker.answers
        if sink is None:
            excuse = Excuse.IN_TURN if leg == "prefill" else Excuse.ALWAYS  # short answers may overtake long ones
        else:
            # The first token of a decode leg waits for KV from a peer: what the engine does for others says nothing.
            excuse = Excuse.NEVER if leg == "decode" else Excuse.IN_TURN
        try:
            answer = await rank.engine.exchange(
                request, sink=sink, deadline=exchange.deadline, silence_seconds=silence_seconds, excuse=excuse
            )
        except UpstreamError as error:
            if sink is not None and sink.done:  # the client has all of it; what broke is the connection's end
                return Answer(status=_OK, content_type=b"", body=b"", streamed=True)
            failure = error.failure
            # One that computes, or answers others, is late, and no more than that.
            computes = worker.progress.moved_at > max(began_at, self._loop.time() - silence_seconds)
            late = failure in (Failure.STALL, Failure.TIMEOUT) and (computes or breaker.answers != answers)
            raise self._blame.failed(rank, leg, failure, late=late) from error
        if answer.status == _UNAUTHORIZED:  # the client's own key was looked at here, and not sent on
            raise self._blame.failed(rank, leg, Failure.REFUSED)
        if answer.status >= _SERVER_ERRORS or (leg != "prefill" and is_aborted(path, answer.body)):
            raise self._blame.failed(rank, leg, Failure.ERROR_STATUS)
        self._registry.worked(rank)
        self._metrics.legs[leg, "answered"] += 1
        return answer
