"""The legs of one attempt: prefill on one worker and decode on another, or both on one. Compiled (hatch_build.py)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from fulcrum.gateway.api_formats.bodies import read_answer, read_usage
from fulcrum.gateway.api_formats.error_object import error_form
from fulcrum.gateway.api_formats.inference_request import ENGINE_PATHS, RESPONSES_PATH, InferenceRequest
from fulcrum.gateway.api_formats.named_events import without_store
from fulcrum.gateway.dispatch.blame import Blame
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.held_prefill import HeldPrefill
from fulcrum.gateway.dispatch.leg import LegSender
from fulcrum.gateway.dispatch.leg_deadlines import LegDeadlines
from fulcrum.gateway.dispatch.recovery import Recovery
from fulcrum.gateway.errors import upstream_failed
from fulcrum.gateway.http.upstream_answer import Answer
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import KnownRank
from fulcrum.routing import ClusterView, Flight, prefill_left_seconds

# A plain number: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_LONGEST_GUESS_SECONDS: Final = 600.0


class Legs:
    """Runs the legs of attempts."""

    def __init__(
        self,
        *,
        sender: LegSender,
        blame: Blame,
        recovery: Recovery,
        leg_deadlines: LegDeadlines,
        cluster: ClusterView,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sender = sender
        self._blame = blame
        self._recovery = recovery
        self._leg_deadlines = leg_deadlines
        self._cluster = cluster
        self._metrics = metrics
        self._loop = loop

    async def two(
        self, exchange: Exchange, request: InferenceRequest, flight: Flight, prefill: KnownRank, decode: KnownRank
    ) -> None:
        """Prefill on one worker, unless it holds this prompt's KV, then decode on the other. Raises LegFailedError."""
        exchange.path = f"{prefill.name},{decode.name}"
        response = exchange.response
        held = exchange.held
        if held is not None and held.rank is prefill and held.usable(self._loop.time()):
            if not request.stream:
                exchange.first_token_at = held.done_at
            self._cluster.prefill_done(flight, self._loop.time(), prompt_tokens=exchange.prompt_tokens, seen=False)
            self._metrics.legs["prefill", "held"] += 1
            await self._last_leg(exchange, request, decode, "decode", request.decode_body(held.kv))
            return
        started_at = self._loop.time()
        body = request.prefill_body(self._prefill_left_seconds(exchange, prefill))
        answer = await self._sender.send(
            "prefill", exchange, prefill, request.path, body, headers=request.engine_headers,
            silence_seconds=self._leg_deadlines.first_answer_seconds(exchange, prefill),
        )  # fmt: skip
        if answer.status != _OK:
            _pass_on(exchange, answer)
            return
        if exchange.accused:
            self._blame.convict(exchange, "prefill")
        prefilled_at = self._loop.time()
        self._metrics.prefill_leg_seconds.observe(prefilled_at - started_at)
        if not request.stream:
            exchange.first_token_at = prefilled_at
        prefilled = read_answer(answer.body)
        kv = prefilled.usable_kv if prefilled is not None else None
        if prefilled is not None and not response.started:
            exchange.note_usage(prefilled.usage, output=False)
        self._cluster.prefill_done(flight, prefilled_at, prompt_tokens=exchange.prompt_tokens)
        if kv is None:
            self._metrics.legs["prefill", "no_kv"] += 1
        elif not response.started:
            exchange.held = HeldPrefill(rank=prefill, kv=kv, done_at=prefilled_at)
        if kv is not None and exchange.sink is not None and exchange.sink is exchange.stream:
            response.on_begin = partial(self._pulled, flight)
        else:
            self._cluster.transfers.drop(flight)  # nothing is pulled, or its end is not seen
        await self._last_leg(exchange, request, decode, "decode", request.decode_body(kv))

    async def one(self, exchange: Exchange, request: InferenceRequest, flight: Flight, rank: KnownRank) -> None:
        """Prefill and decode on one worker. Raises LegFailedError."""
        exchange.path = rank.name
        if request.pools:
            await self._pool(exchange, request, flight, rank)
            return
        if request.stream:
            exchange.response.on_begin = partial(self._first_token, flight)
        elif flight.route.ttft_seconds < _LONGEST_GUESS_SECONDS:
            self._cluster.expect_first_token(flight, self._loop.time() + flight.route.ttft_seconds)
        body = request.whole_body(self._prefill_left_seconds(exchange, rank))
        await self._last_leg(exchange, request, rank, "whole", body)
        expected = flight.route
        if expected.known and exchange.output_tokens:
            later_seconds = (exchange.output_tokens - 1) * expected.tpot_seconds if not request.whole else 0.0
            self._cluster.answered(flight, self._loop.time(), later_seconds=later_seconds)

    async def _pool(self, exchange: Exchange, request: InferenceRequest, flight: Flight, rank: KnownRank) -> None:
        """A prompt whose answer is there as soon as it is computed. Raises LegFailedError."""
        await self._last_leg(exchange, request, rank, "whole", request.whole_body())
        if exchange.response.status == _OK:
            now = exchange.first_token_at = self._loop.time()
            exchange.output_tokens = 1
            self._cluster.prefill_done(flight, now, prompt_tokens=exchange.prompt_tokens)

    def _prefill_left_seconds(self, exchange: Exchange, rank: KnownRank) -> float | None:
        """What is left for the prefill, for an engine that chooses how to restore a prefix; None: it does not."""
        tiers, incoming = rank.state.tiers, exchange.incoming
        if tiers is None or not tiers.front or incoming is None:
            return None
        ttft_seconds = min(self._cluster.ttft_seconds, incoming.ttft_seconds)
        return prefill_left_seconds(ttft_seconds, self._loop.time() - exchange.started_at)

    def _first_token(self, flight: Flight) -> None:
        self._cluster.prefill_done(flight, self._loop.time())

    def _pulled(self, flight: Flight) -> None:
        self._cluster.pulled(flight, self._loop.time())

    async def _last_leg(
        self, exchange: Exchange, request: InferenceRequest, rank: KnownRank, leg: str, body: bytes
    ) -> None:
        """The leg whose answer is the client's."""
        response = exchange.response
        sink = exchange.sink
        if not response.started:
            response.path_headers = b"x-fulcrum-path: %b\r\n" % exchange.path.encode()
        if exchange.accused and sink is not None:
            self._blame.convict_when_begun(exchange)
        answer = await self._sender.send(
            leg, exchange, rank, ENGINE_PATHS.get(request.path, request.path), body,
            headers=request.engine_headers, sink=sink,
            silence_seconds=self._leg_deadlines.last_leg_seconds(exchange, request, rank),
        )  # fmt: skip
        if exchange.accused and answer.status == _OK:
            self._blame.convict(exchange)
        if not answer.streamed:
            _pass_on(exchange, answer)
            return
        response.stream_end()
        exchange.first_token_at = response.began_at
        stream = exchange.stream
        if stream is None or sink is not stream:
            self._recovery.ended(exchange)
        else:
            exchange.note_usage(stream.usage, output=True)
            if exchange.output_tokens is None:
                exchange.output_tokens = exchange.streamed_tokens(done=True)


def _pass_on(exchange: Exchange, answer: Answer) -> None:
    """A complete answer, of whatever status, is the client's. Raises RequestError when it has a part of one already."""
    if exchange.response.started:
        raise upstream_failed(f"A worker answered {answer.status} when it was to go on with the answer. Retry it.")
    body = answer.body
    if answer.status != _OK:
        body = error_form(exchange.route).passed_on(answer.status, body)
    elif exchange.route == RESPONSES_PATH:
        body = without_store(body)
    exchange.response.send(answer.status, answer.content_type, body)
    if answer.status == _OK:
        exchange.note_usage(read_usage(answer.body), output=True)
