"""One request: let in or turned away, then attempted until a worker serves it. Compiled (hatch_build.py)."""

from __future__ import annotations

import asyncio

from fulcrum.admission import Preempt
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.reasons import Reason
from fulcrum.gateway.api_formats.inference_request import MESSAGES_PATH, RESPONSES_PATH, InferenceRequest, ask_for_usage
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.blame import Blame
from fulcrum.gateway.dispatch.client_stream import ClientStream
from fulcrum.gateway.dispatch.entrance import Entrance, degrade
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.hold import Hold
from fulcrum.gateway.dispatch.leg import LegSender
from fulcrum.gateway.dispatch.leg_deadlines import LegDeadlines, between_pieces_seconds
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.dispatch.legs import Legs
from fulcrum.gateway.dispatch.named_stream import NamedStream
from fulcrum.gateway.dispatch.recovery import Recovery
from fulcrum.gateway.dispatch.resume import follow
from fulcrum.gateway.dispatch.stream_log import StreamLogBudget
from fulcrum.gateway.dispatch.tokenizing import Tokenizing
from fulcrum.gateway.errors import rejected
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import WorkerRegistry
from fulcrum.routing import Flight, Incoming, Route


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
        self._loop = loop
        self._leg_deadlines = LegDeadlines(
            config.slo_ttft_seconds,
            admission.core.learnt.neighbours,
            request_timeout_seconds=config.limits.request_timeout_seconds,
        )
        self._blame = Blame(self._leg_deadlines, registry=registry, metrics=metrics, loop=loop)
        sender = LegSender(self._blame, registry, metrics, loop)
        self._recovery = Recovery(
            blame=self._blame, legs=sender, admission=admission, registry=registry, metrics=metrics, loop=loop
        )
        self._legs = Legs(
            sender=sender,
            blame=self._blame,
            recovery=self._recovery,
            leg_deadlines=self._leg_deadlines,
            cluster=admission.cluster,
            metrics=metrics,
            loop=loop,
        )
        self.tokenizing = Tokenizing(sender, self._blame, registry, loop)
        self.hold = Hold(config.hold, admission=admission, heartbeat_seconds=config.heartbeat_seconds, loop=loop)
        self._budget = StreamLogBudget()
        self._entrance = Entrance(admission, self.hold, loop, self._preempt)
        self._preempts = len(admission.classes) > 1
        self._under_way: dict[Flight, tuple[asyncio.Task[None], Response]] = {}
        """Tasks to cancel when their request makes way for another; empty where there is one class only."""

    async def run(self, exchange: Exchange, request: InferenceRequest, incoming: Incoming) -> None:
        """Let a request in and have it served. Raises RequestError."""
        admitted = await self._entrance.enter(exchange, incoming, streams=request.stream)
        incoming, flight = admitted.incoming, admitted.flight
        if admitted.output_cap is not None:
            request = degrade(exchange, request, self._admission, admitted.output_cap)
        tried: frozenset[str] = frozenset()
        slow: frozenset[str] = frozenset()
        self._leg_deadlines.arrived()
        while True:
            exchange.attempts += 1
            exchange.first_token_at = exchange.response.began_at  # nothing of an attempt that failed
            exchange.flight = flight
            try:
                if request.stream and exchange.stream is None:
                    self._begin_stream(exchange, request)
                await self._attempt(exchange, request, flight)
            except LegFailedError as failed:
                if exchange.response.started:
                    incoming = self._recovery.lost(exchange, request, incoming, failed)
                self._blame.try_elsewhere(exchange, failed)
                tried |= {failed.worker.name}
                if failed.failure is Failure.STALL:
                    slow |= {failed.worker.name}
                    self._cluster.given_up(flight, self._loop.time())
            else:
                return
            finally:
                self._cluster.finish(flight, self._loop.time())
            await self._blame.check_crashes(exchange)
            route = self._another_decode(exchange, incoming, tried) or await self._recovery.detour(
                exchange, incoming, tried, slow
            )
            flight = self._cluster.start(incoming, route, self._loop.time())

    def _begin_stream(self, exchange: Exchange, request: InferenceRequest) -> None:
        exchange.response.deadline = exchange.deadline
        exchange.response.begin_heartbeat(self._loop, self._heartbeat_seconds)
        exchange.stream = self._client_stream(exchange, request)

    def _client_stream(self, exchange: Exchange, request: InferenceRequest) -> ClientStream:
        """What passes the stream on; asks the engine for what is to be known of it."""
        if request.path in (MESSAGES_PATH, RESPONSES_PATH):
            return NamedStream(exchange.response, request.path)
        hides_usage = ask_for_usage(request) and not self._forces_usage
        exchange.stream_log = follow(request, self._budget)
        return ClientStream(exchange.response, exchange.stream_log, hides_usage=hides_usage)

    def _another_decode(self, exchange: Exchange, incoming: Incoming, tried: frozenset[str]) -> Route | None:
        """A path that goes on from the prefill that is held; None: a new prefill is needed."""
        held, now = exchange.held, self._loop.time()
        if held is None or not held.usable(now) or not self._registry.has(held.rank.worker):
            return None
        return self._admission.decode_elsewhere(incoming, held.rank.state, tried, now)

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
                await self._legs.two(exchange, request, flight, prefill, decode)
            else:
                await self._legs.one(exchange, request, flight, prefill)
        finally:
            if self._preempts:
                self._under_way.pop(flight, None)

    def _preempt(self, decided: Preempt) -> None:
        """End requests of which no token was sent: those of lower classes that wait for their prefill, and batch."""
        for victim in decided.victims:
            task, response = self._under_way.pop(victim, (None, None))
            if task is None or response is None or response.started:
                continue  # a stream that is being resumed: its client has tokens
            self._cluster.finish(victim, self._loop.time())
            if response.verdict is None:
                reason = Reason.NOTHING_IDLE if victim.load.batch else Reason.PREEMPTED
                response.verdict = rejected(reason, decided.retry_after_seconds)
                task.cancel()
