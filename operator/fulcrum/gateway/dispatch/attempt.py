"""One request: let in or turned away, its leg or legs run, tried again elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from fulcrum.admission import Preempt
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.reasons import Reason
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.client_stream import ClientStream
from fulcrum.gateway.dispatch.crashes import Crashes
from fulcrum.gateway.dispatch.exchange import MAX_ATTEMPTS, Exchange
from fulcrum.gateway.dispatch.first_tokens import FirstTokens
from fulcrum.gateway.dispatch.held_prefill import HeldPrefill
from fulcrum.gateway.dispatch.leg_deadlines import LegDeadlines, between_pieces_seconds
from fulcrum.gateway.dispatch.legs import DOUBTFUL, LegFailedError, Legs
from fulcrum.gateway.dispatch.recovery import Recovery
from fulcrum.gateway.dispatch.resume import follow
from fulcrum.gateway.dispatch.stream_log import StreamLogBudget
from fulcrum.gateway.errors import rejected, upstream_failed
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Answer, Failure
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.openai.bodies import read_answer, read_usage
from fulcrum.gateway.openai.inference_request import InferenceRequest, ask_for_usage
from fulcrum.gateway.workers.registry import Worker, WorkerRegistry
from fulcrum.routing import Flight, Incoming, Route, prefill_left_seconds
from fulcrum.routing.flight import PREFILLING

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS: Final = 6
"""Attempts in all: a request that kills its workers must not go through the whole cluster."""
# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_LONGEST_GUESS_SECONDS: Final = 600.0


class Attempts:
    """Runs requests over the workers of `registry`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        admission: AdmissionControl,
        registry: WorkerRegistry,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._heartbeat_seconds = config.heartbeat_seconds
        self._forces_usage = config.force_include_usage
        self._admission = admission
        self._cluster = admission.cluster
        self._registry = registry
        self._metrics = metrics
        self._loop = loop
        self._legs = Legs(registry, metrics, loop)
        self._recovery = Recovery(legs=self._legs, admission=admission, registry=registry, metrics=metrics, loop=loop)
        self._crashes = Crashes(registry, metrics, loop)
        self.first_tokens = FirstTokens(admission.cluster)
        self._budget = StreamLogBudget()
        self._leg_deadlines = LegDeadlines(
            config.slo_ttft_seconds,
            admission.core.neighbours,
            request_timeout_seconds=config.limits.request_timeout_seconds,
        )
        self._preempts = len(admission.classes) > 1
        self._under_way: dict[Flight, tuple[asyncio.Task[None], Response]] = {}
        """Tasks to cancel when their request makes way for another; empty where there is one class only."""

    async def run(self, exchange: Exchange, request: InferenceRequest, incoming: Incoming) -> None:
        """Let a request in and have it served. Raises RequestError."""
        now = self._loop.time()
        self.first_tokens.pass_time(now)
        decided = self._admission.decide(incoming, now)
        if isinstance(decided, Preempt):
            self._preempt(decided)
        route = decided.route
        tried: frozenset[str] = frozenset()
        slow: frozenset[str] = frozenset()
        if request.stream:
            exchange.response.deadline = exchange.deadline
            hides_usage = ask_for_usage(request) and not self._forces_usage
            exchange.response.begin_heartbeat(self._loop, self._heartbeat_seconds)
            exchange.stream_log = follow(request, self._budget)
            exchange.stream = ClientStream(exchange.response, exchange.stream_log, hides_usage=hides_usage)
        self._leg_deadlines.arrived()
        while True:
            exchange.attempts += 1
            exchange.first_token_at = exchange.response.began_at  # nothing of an attempt that failed
            flight = exchange.flight = self._cluster.start(incoming, route, self._loop.time())
            try:
                await self._attempt(exchange, request, flight)
            except LegFailedError as failed:
                if exchange.response.started:
                    incoming = self._recovery.lost(exchange, request, incoming, failed)
                self._after_failure(exchange, failed)
                self._crashes.note(exchange, failed)
                tried |= {failed.worker.name}
                if failed.failure is Failure.STALL:
                    slow |= {failed.worker.name}
                    now = self._loop.time()
                    self.first_tokens.pass_time(now)
                    self._cluster.given_up(flight, now)
            else:
                return
            finally:
                now = self._loop.time()
                self.first_tokens.pass_time(now)
                self._cluster.finish(flight, now)
            await self._crashes.check(exchange)
            route = self._another_decode(exchange, incoming, tried) or await self._recovery.detour(
                exchange, incoming, tried, slow
            )

    def _another_decode(self, exchange: Exchange, incoming: Incoming, tried: frozenset[str]) -> Route | None:
        """A path that goes on from the prefill that is held; None: a new prefill is needed."""
        held, now = exchange.held, self._loop.time()
        if held is None or not held.usable(now) or not self._registry.has(held.worker):
            return None
        return self._admission.decode_elsewhere(incoming, held.worker.state, tried, now)

    async def _attempt(self, exchange: Exchange, request: InferenceRequest, flight: Flight) -> None:
        route = flight.route
        if self._preempts:
            task = asyncio.current_task(self._loop)  # finding the loop would be a system call
            if task is not None:
                self._under_way[flight] = (task, exchange.response)
        try:
            prefill = self._registry.of(route.prefill)
            decode = self._registry.of(route.decode)
            exchange.sink = exchange.stream
            if exchange.response.started:
                rest = await self._recovery.rest(exchange, request, prefill)
                if rest is None:
                    return
                request, exchange.sink = rest
            if exchange.stream_log is not None:
                exchange.response.stall_seconds = between_pieces_seconds(flight, request.stream_interval)
            if prefill is not decode:
                await self._two_legs(exchange, request, flight, prefill, decode)
            else:
                await self._one_leg(exchange, request, flight, prefill)
        finally:
            if self._preempts:
                self._under_way.pop(flight, None)

    def _preempt(self, decided: Preempt) -> None:
        """End requests of lower classes that still wait for their prefill: no token of them was sent."""
        for victim in decided.victims:
            task, response = self._under_way.pop(victim, (None, None))
            if task is None or response is None or response.started:
                continue  # a stream that is being resumed: its client has tokens
            self._cluster.finish(victim, self._loop.time())
            if response.verdict is None:
                response.verdict = rejected(Reason.PREEMPTED, decided.retry_after_seconds)
                task.cancel()

    def _after_failure(self, exchange: Exchange, failed: LegFailedError) -> None:
        """Raises RequestError unless another attempt may be made."""
        logger.warning(
            "leg_failed id=%s attempt=%d cause=%s", exchange.response.request_id.decode(), exchange.attempts, failed
        )
        exchange.fruitless += 1
        if failed.failure is not Failure.CONNECT or failed.leg != "decode":
            exchange.held = None  # the worker may have begun to pull, and what is pulled is freed
        if failed.failure in DOUBTFUL:
            exchange.accused.append(failed)
        if failed.failure is Failure.STALL:
            self._leg_deadlines.lost()
        if exchange.fruitless >= MAX_ATTEMPTS or exchange.attempts >= _MOST_ATTEMPTS:
            raise self._recovery.gave_up(exchange, "Several workers failed to serve the request. Retry it.") from failed
        self._metrics.retries[failed.leg] += 1

    async def _two_legs(
        self, exchange: Exchange, request: InferenceRequest, flight: Flight, prefill: Worker, decode: Worker
    ) -> None:
        exchange.path = f"{prefill.name},{decode.name}"
        response = exchange.response
        held = exchange.held
        if held is not None and held.worker is prefill and held.usable(self._loop.time()):
            if not request.stream:
                exchange.first_token_at = held.done_at
            self._cluster.prefill_done(flight, self._loop.time(), prompt_tokens=exchange.prompt_tokens, seen=False)
            self._metrics.legs["prefill", "held"] += 1
            await self._last_leg(exchange, request, decode, "decode", request.decode_body(held.kv))
            return
        started_at = self._loop.time()
        body = request.prefill_body(self._prefill_left_seconds(exchange, prefill))
        answer = await self._legs.run(
            "prefill", prefill, request.path, response.request_id, body, deadline=exchange.deadline,
            silence_seconds=self._leg_deadlines.first_answer_seconds(exchange, prefill),
        )  # fmt: skip
        if answer.status != _OK:
            _pass_on(exchange, answer)
            return
        if exchange.accused:
            self._convict(exchange, "prefill")
        prefilled_at = self._loop.time()
        self._metrics.prefill_leg_seconds.observe(prefilled_at - started_at)
        if not request.stream:
            exchange.first_token_at = prefilled_at
        prefilled = read_answer(answer.body)
        kv = prefilled.usable_kv if prefilled is not None else None
        if prefilled is not None and not response.started:
            exchange.note_usage(prefilled.usage, output=False)
        self.first_tokens.pass_time(prefilled_at)
        self._cluster.prefill_done(flight, prefilled_at, prompt_tokens=exchange.prompt_tokens)
        if kv is None:
            self._metrics.legs["prefill", "no_kv"] += 1
        elif not response.started:
            exchange.held = HeldPrefill(worker=prefill, kv=kv, done_at=prefilled_at)
        if kv is not None and exchange.sink is not None and exchange.sink is exchange.stream:
            response.on_begin = partial(self._pulled, flight)
        else:
            self._cluster.transfers.drop(flight)  # nothing is pulled, or its end is not seen
        await self._last_leg(exchange, request, decode, "decode", request.decode_body(kv))

    async def _one_leg(self, exchange: Exchange, request: InferenceRequest, flight: Flight, worker: Worker) -> None:
        exchange.path = worker.name
        if request.stream:
            exchange.response.on_begin = partial(self._first_token, flight)
        elif flight.route.ttft_seconds < _LONGEST_GUESS_SECONDS:
            self.first_tokens.expect(flight, self._loop.time() + flight.route.ttft_seconds)
        body = request.whole_body(self._prefill_left_seconds(exchange, worker))
        await self._last_leg(exchange, request, worker, "whole", body)
        now, expected = self._loop.time(), flight.route
        self.first_tokens.pass_time(now)
        if flight.phase == PREFILLING and expected.known and exchange.output_tokens:
            # The whole answer came before its first token was predicted. How wrong prefill and decode were each is not
            # known, so the time that it took is divided between them as predicted.
            later_seconds = (exchange.output_tokens - 1) * expected.tpot_seconds if not request.whole else 0.0
            share = expected.ttft_seconds / (expected.ttft_seconds + later_seconds)
            self._cluster.prefill_done(flight, flight.started_at + share * (now - flight.started_at))

    def _prefill_left_seconds(self, exchange: Exchange, worker: Worker) -> float | None:
        """What is left for the prefill, for an engine that chooses how to restore a prefix; None: it does not."""
        tiers, incoming = worker.state.tiers, exchange.incoming
        if tiers is None or not tiers.front or incoming is None:
            return None
        ttft_seconds = min(self._cluster.ttft_seconds, incoming.ttft_seconds)
        return prefill_left_seconds(ttft_seconds, self._loop.time() - exchange.started_at)

    def _first_token(self, flight: Flight) -> None:
        now = self._loop.time()
        self.first_tokens.pass_time(now)
        self._cluster.prefill_done(flight, now)

    def _pulled(self, flight: Flight) -> None:
        now = self._loop.time()
        self.first_tokens.pass_time(now)
        self._cluster.pulled(flight, now)

    async def _last_leg(
        self, exchange: Exchange, request: InferenceRequest, worker: Worker, leg: str, body: bytes
    ) -> None:
        """The leg whose answer is the client's."""
        response = exchange.response
        sink = exchange.sink
        if not response.started:
            response.path_headers = b"x-fulcrum-path: %b\r\n" % exchange.path.encode()
        if exchange.accused and sink is not None:
            response.on_begin = partial(self._begun, exchange, response.on_begin)
        answer = await self._legs.run(
            leg, worker, request.path, response.request_id, body, deadline=exchange.deadline, sink=sink,
            silence_seconds=self._leg_deadlines.last_leg_seconds(exchange, request, worker),
        )  # fmt: skip
        if exchange.accused and answer.status == _OK:
            self._convict(exchange)
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

    def _begun(self, exchange: Exchange, on_begin: Callable[[], None] | None) -> None:
        if on_begin is not None:
            on_begin()
        self._convict(exchange)

    def _convict(self, exchange: Exchange, leg: str = "") -> None:
        """Another worker serves `exchange` (or its `leg`): the workers that failed it are at fault, not the request."""
        guilty = [failed for failed in exchange.accused if leg in ("", failed.leg)]
        exchange.accused = [failed for failed in exchange.accused if failed not in guilty]
        for failed in guilty:
            self._registry.failed(failed.worker, self._loop.time())


def _pass_on(exchange: Exchange, answer: Answer) -> None:
    """A complete answer, of whatever status, is the client's. Raises RequestError when it has a part of one already."""
    if exchange.response.started:
        raise upstream_failed(f"A worker answered {answer.status} when it was to go on with the answer. Retry it.")
    exchange.response.send(answer.status, answer.content_type, answer.body)
    if answer.status == _OK:
        exchange.note_usage(read_usage(answer.body), output=True)
