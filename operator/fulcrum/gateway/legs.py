"""One inference request: let in or turned away, its leg or legs run, tried again elsewhere, accounted for."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from http import HTTPStatus
from typing import Final

from fulcrum.admission import Preempt
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.reasons import Reason
from fulcrum.gateway.answer import Answer, Failure, StreamSink, UpstreamError
from fulcrum.gateway.body import Job, read_answer, read_job
from fulcrum.gateway.call import Accounts, Call
from fulcrum.gateway.errors import SERVER_ERROR, RequestError, rejected, upstream_failed
from fulcrum.gateway.front_door import FrontDoor
from fulcrum.gateway.metrics import Metrics
from fulcrum.gateway.reply import Reply
from fulcrum.gateway.request import Request
from fulcrum.gateway.stream_usage import UsageTail, asks_for_usage
from fulcrum.gateway.workers import Worker, WorkerView
from fulcrum.routing import Flight, Incoming

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_SERVER_ERRORS: Final = 500
_READ_USAGE_BYTES: Final = 256 * 1024
_LONGEST_GUESS_SECONDS: Final = 3600.0
CLIENT_CLOSED: Final = 499
"""Code in metrics and logs of a request whose client left."""


class LegFailedError(Exception):
    """A leg failed on `worker` in a way that another worker may not."""

    def __init__(self, worker: Worker, leg: str, failure: Failure) -> None:
        super().__init__(f"{leg} on {worker.name}: {failure}")
        self.worker = worker
        self.leg = leg


class Inference:
    """Serves completions and chat completions over the workers of `view`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        door: FrontDoor,
        view: WorkerView,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        access_log: bool,
    ) -> None:
        self._served_name = config.served_name
        self._request_timeout_seconds = config.limits.request_timeout_seconds
        self._door = door
        self._classes = door.classes
        self._cluster = door.cluster
        self._view = view
        self._metrics = metrics
        self._loop = loop
        self._accounts = Accounts(config=config, door=door, metrics=metrics, loop=loop, access_log=access_log)
        self.has_slo = self._accounts.has_slo
        self._preempts = len(self._classes) > 1
        self._under_way: dict[Flight, tuple[asyncio.Task[None], Reply]] = {}
        """Whom to tell that their request makes way for another; empty where there is one class only."""

    async def serve(self, route: str, request: Request, reply: Reply) -> None:
        """Answer one request; raises nothing. A cancelled one is answered with `reply.verdict`, if there is one."""
        now = self._loop.time()
        qos = self._classes.rest
        call = Call(
            route=route,
            reply=reply,
            started_at=now,
            deadline=now + self._request_timeout_seconds,
            qos_class=self._classes.names[qos],
        )
        error: RequestError | None = None
        try:
            key = call.key = self._door.enter(request.headers)
            qos = self._door.qos(key, request.headers)
            call.qos_class = self._classes.names[qos]
            job = read_job(route, request.body, self._served_name)
            incoming = self._door.incoming(job, qos, request.headers)
            if key is not None:
                key.charge(incoming.prompt_tokens + incoming.output_tokens, now)
            # From here on it is load, whatever becomes of it.
            call.job, call.incoming = job, incoming
            self._metrics.of_class(call.qos_class).arrivals += 1
            await self._attempts(call, job, incoming)
        except RequestError as refused:
            error = refused
        except asyncio.CancelledError:
            error = reply.verdict
            if error is None:
                reply.status = CLIENT_CLOSED
        except Exception:  # the edge of one request: whatever it is, the gateway must go on serving the others
            logger.exception("request_crashed id=%s", request.request_id.decode())
            error = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The gateway failed.", kind=SERVER_ERROR)
        if error is not None:
            reply.fail(error)
        self._accounts.close(call, error)

    async def _attempts(self, call: Call, job: Job, incoming: Incoming) -> None:
        decided = self._door.decide(incoming, call.started_at)
        if isinstance(decided, Preempt):
            self._preempt(decided)
        found = decided.route
        tried: frozenset[str] = frozenset()
        while True:
            call.attempts += 1
            call.first_token_at = 0.0  # of an attempt that failed
            flight = call.flight = self._cluster.start(incoming, found, self._loop.time())
            try:
                await self._attempt(call, job, flight)
            except LegFailedError as failed:
                self._after_failure(call, failed)
                tried |= {failed.worker.name}
            else:
                return
            finally:
                self._cluster.finish(flight, self._loop.time())
            detour = self._door.detour(incoming, tried, self._loop.time())
            if detour is None:
                raise upstream_failed("No worker could serve the request. Retry it.")
            found = detour

    async def _attempt(self, call: Call, job: Job, flight: Flight) -> None:
        found = flight.route
        if self._preempts:
            task = asyncio.current_task()
            if task is not None:
                self._under_way[flight] = (task, call.reply)
        try:
            prefill = self._view.of(found.prefill)
            if found.prefill is not found.decode:
                await self._two_legs(call, job, flight, prefill, self._view.of(found.decode))
            else:
                await self._one_leg(call, job, flight, prefill)
        finally:
            if self._preempts:
                self._under_way.pop(flight, None)

    def _preempt(self, decided: Preempt) -> None:
        """End requests of lower classes that still wait for their prefill: no token of them was sent."""
        for victim in decided.victims:
            self._cluster.finish(victim, self._loop.time())
            task, reply = self._under_way.pop(victim, (None, None))
            if task is not None and reply is not None and reply.verdict is None:
                reply.verdict = rejected(Reason.PREEMPTED, decided.retry_after_seconds)
                task.cancel()

    def _after_failure(self, call: Call, failed: LegFailedError) -> None:
        """Raises RequestError unless another attempt may be made."""
        if call.reply.started:
            raise upstream_failed("The worker was lost in the middle of the answer. Retry the request.") from failed
        logger.warning("leg_failed id=%s attempt=%d cause=%s", call.reply.request_id.decode(), call.attempts, failed)
        if call.attempts >= _MAX_ATTEMPTS:
            raise upstream_failed("Several workers failed to serve the request. Retry it.") from failed
        self._metrics.retries[failed.leg] += 1

    async def _two_legs(self, call: Call, job: Job, flight: Flight, prefill: Worker, decode: Worker) -> None:
        call.path = f"{prefill.name},{decode.name}"
        started_at = self._loop.time()
        # A third, so that a prefill worker that hangs leaves time for two more attempts.
        deadline = min(call.deadline, started_at + self._request_timeout_seconds / 3)
        answer = await self._leg(call, job, prefill, "prefill", job.prefill_body(), deadline=deadline)
        if answer.status != _OK:
            call.reply.send(answer.status, answer.content_type, answer.body)
            return
        prefilled_at = self._loop.time()
        self._metrics.prefill_leg_seconds.observe(prefilled_at - started_at)
        if not job.stream:
            call.first_token_at = prefilled_at
        prefilled = read_answer(answer.body)
        kv = prefilled.usable_kv if prefilled is not None else None
        if prefilled is not None:
            call.note_usage(prefilled.usage, output=False)
        self._cluster.prefill_done(flight, prefilled_at, prompt_tokens=call.prompt_tokens)
        if kv is None:
            self._metrics.legs["prefill", "no_kv"] += 1
        await self._last_leg(call, job, decode, "decode", job.decode_body(kv))

    async def _one_leg(self, call: Call, job: Job, flight: Flight, worker: Worker) -> None:
        call.path = worker.name
        if job.stream:
            call.reply.on_begin = partial(self._first_token, flight)
            await self._last_leg(call, job, worker, "whole", job.whole_body())
            return
        # Nobody sees the first token of an answer that comes as one: it is taken to come when predicted.
        delay_seconds = min(flight.route.ttft_seconds, _LONGEST_GUESS_SECONDS)
        guess = self._loop.call_later(delay_seconds, self._first_token, flight)
        try:
            await self._last_leg(call, job, worker, "whole", job.whole_body())
        finally:
            guess.cancel()

    def _first_token(self, flight: Flight) -> None:
        self._cluster.prefill_done(flight, self._loop.time())

    async def _last_leg(self, call: Call, job: Job, worker: Worker, leg: str, body: bytes) -> None:
        """The leg whose answer is the client's."""
        reply = call.reply
        reply.path_headers = b"x-fulcrum-path: %b\r\n" % call.path.encode()
        sink: StreamSink | None = reply if job.stream else None
        # Only where the prompt's length would have to be guessed: it costs a call for each piece of the stream.
        tail = UsageTail(reply) if sink and call.prompt_tokens is None and asks_for_usage(job) else None
        answer = await self._leg(call, job, worker, leg, body, deadline=call.deadline, sink=tail or sink)
        if answer.streamed:
            reply.stream_end()
            call.first_token_at = answer.first_byte_at
            call.output_tokens = max(answer.events - 1, 0)  # the last event is [DONE]
            if tail is not None:
                call.note_usage(tail.usage(), output=True)
            return
        reply.send(answer.status, answer.content_type, answer.body)
        if answer.status == _OK and len(answer.body) <= _READ_USAGE_BYTES:
            read = read_answer(answer.body)
            if read is not None:
                call.note_usage(read.usage, output=True)

    async def _leg(
        self,
        call: Call,
        job: Job,
        worker: Worker,
        leg: str,
        body: bytes,
        *,
        deadline: float,
        sink: StreamSink | None = None,
    ) -> Answer:
        if worker.changed_at is not None:
            self._metrics.role_change_lag_seconds.observe(self._loop.time() - worker.changed_at)
            worker.changed_at = None
        request = worker.pool.request(job.path, call.reply.request_id, body)
        try:
            answer = await worker.pool.exchange(request, sink=sink, deadline=deadline)
        except UpstreamError as error:
            raise self._leg_failure(worker, leg, error.failure) from error
        if answer.status >= _SERVER_ERRORS:
            raise self._leg_failure(worker, leg, Failure.ERROR_STATUS)
        self._view.worked(worker)
        self._metrics.legs[leg, "answered"] += 1
        return answer

    def _leg_failure(self, worker: Worker, leg: str, failure: Failure) -> LegFailedError:
        self._view.failed(worker, self._loop.time())
        self._metrics.legs[leg, failure.value] += 1
        return LegFailedError(worker, leg, failure)
