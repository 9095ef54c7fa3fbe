"""One inference request: let in or turned away, its leg or legs run, tried again elsewhere, accounted for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from msgspec import Raw

from fulcrum.admission import AGAIN_SECONDS, Admit, Postponed, Preempt
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.reasons import Reason
from fulcrum.gateway.dispatch.admit import FrontDoor
from fulcrum.gateway.dispatch.exchange import Accounts, Call
from fulcrum.gateway.dispatch.first_tokens import FirstTokens
from fulcrum.gateway.dispatch.held_prefill import HeldPrefill
from fulcrum.gateway.dispatch.leg_deadlines import Patience, between_pieces_seconds
from fulcrum.gateway.dispatch.legs import DOUBTFUL, LegFailedError, Legs
from fulcrum.gateway.dispatch.recovery import Recovery
from fulcrum.gateway.dispatch.resume import follow
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Reply
from fulcrum.gateway.http.upstream_answer import Answer, Failure
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.openai.bodies import read_answer, read_job
from fulcrum.gateway.openai.errors import SERVER_ERROR, RequestError, rejected, upstream_failed
from fulcrum.gateway.openai.inference_request import Job
from fulcrum.gateway.openai.stream_log import PiecesBudget
from fulcrum.gateway.openai.stream_usage import ask_for_usage
from fulcrum.gateway.unhandled import where
from fulcrum.gateway.workers.registry import Worker, WorkerView
from fulcrum.routing import Flight, Incoming, Route

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
"""Attempts in a row that make no token."""
_MOST_ATTEMPTS: Final = 6
"""Attempts in all: a request that kills its workers must not go through the whole cluster."""
# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_READ_USAGE_BYTES: Final = 256 * 1024
_LONGEST_GUESS_SECONDS: Final = 600.0
_LONGEST_PREFILL_SECONDS: Final = 600.0
"""A million tokens take minutes on one GPU node. A prefill worker of unknown speed that takes longer hangs."""
CLIENT_CLOSED: Final = 499
"""Code in metrics and logs of a request whose client left."""


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
        # A third, so that a prefill worker that hangs leaves time for two more attempts.
        self._prefill_timeout_seconds = min(self._request_timeout_seconds / 3, _LONGEST_PREFILL_SECONDS)
        self._salts_prefixes = config.salt_prefixes
        self._door = door
        self._classes = door.classes
        self._cluster = door.cluster
        self._view = view
        self._metrics = metrics
        self._loop = loop
        self._legs = Legs(view, metrics, loop)
        self._recovery = Recovery(legs=self._legs, door=door, view=view, metrics=metrics, loop=loop)
        self.first_tokens = FirstTokens(door.cluster)
        self._budget = PiecesBudget()
        self._patience = Patience(config.slo_ttft_seconds, door.admission.neighbours)
        self._priorities = _engine_priorities(door)
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
            if key is not None and self._salts_prefixes:
                job.fields["cache_salt"] = Raw(key.cache_salt(bytes(job.fields.get("cache_salt", b""))))
            incoming = self._door.incoming(job, qos, request.headers)
            if key is not None:
                key.charge(incoming.prompt_tokens + incoming.output_tokens, now)
            if self._priorities:
                job.fields["priority"] = self._priorities[qos]
            # From here on it is load, whatever becomes of it.
            call.job, call.incoming = job, incoming
            self._accounts.arrived(call, incoming)
            await self._attempts(call, job, incoming)
        except RequestError as refused:
            error = refused
        except asyncio.CancelledError:
            error = reply.verdict
            if error is None:
                reply.status = CLIENT_CLOSED
        except Exception as crash:  # noqa: BLE001  the edge of one request: the gateway must go on serving the others
            logger.error("request_crashed id=%s error=%s", request.request_id.decode(), where(crash))  # noqa: TRY400
            error = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The gateway failed.", kind=SERVER_ERROR)
        if error is not None:
            reply.fail(error)
        self._accounts.close(call, error)
        if call.sent is not None:
            call.sent.close()

    async def _attempts(self, call: Call, job: Job, incoming: Incoming) -> None:
        self.first_tokens.pass_time(call.started_at)
        decided = self._door.decide(incoming, call.started_at)
        if isinstance(decided, Postponed):
            postponed = decided
            decided = await self._kept(postponed)
            incoming = postponed.incoming
        if isinstance(decided, Preempt):
            self._preempt(decided)
        found = decided.route
        tried: frozenset[str] = frozenset()
        slow: frozenset[str] = frozenset()
        if job.stream:
            call.reply.deadline = call.deadline
            call.reply.hides_usage = ask_for_usage(job)
            call.sent = call.reply.sent = follow(job, self._budget)
        self._patience.arrived()
        while True:
            call.attempts += 1
            call.first_token_at = call.reply.began_at  # nothing of an attempt that failed
            flight = call.flight = self._cluster.start(incoming, found, self._loop.time())
            try:
                await self._attempt(call, job, flight)
            except LegFailedError as failed:
                if call.reply.started:
                    incoming = self._recovery.lost(call, job, incoming, failed)
                self._after_failure(call, failed)
                tried |= {failed.worker.name}
                if failed.failure is Failure.STALL:
                    slow |= {failed.worker.name}
            else:
                return
            finally:
                now = self._loop.time()
                self.first_tokens.pass_time(now)
                self._cluster.finish(flight, now)
            found = self._another_decode(call, incoming, tried) or await self._recovery.detour(
                call, incoming, tried, slow
            )

    def _another_decode(self, call: Call, incoming: Incoming, tried: frozenset[str]) -> Route | None:
        """A path that goes on from the prefill that is held; None: a new prefill is needed."""
        held, now = call.held, self._loop.time()
        if held is None or not held.usable(now) or held.worker not in self._view.workers:
            return None
        return self._door.decode_elsewhere(incoming, held.worker.state, tried, now)

    async def _kept(self, postponed: Postponed) -> Admit | Preempt:
        """Keep a request until it may go. Raises RequestError (429 or 503)."""
        try:
            while True:
                await asyncio.sleep(AGAIN_SECONDS)
                decided = self._door.again(postponed, self._loop.time())
                if decided is not None:
                    return decided
        finally:
            self._door.leave(postponed)

    async def _attempt(self, call: Call, job: Job, flight: Flight) -> None:
        found = flight.route
        if self._preempts:
            task = asyncio.current_task(self._loop)  # finding the loop would be a system call
            if task is not None:
                self._under_way[flight] = (task, call.reply)
        try:
            prefill = self._view.of(found.prefill)
            decode = self._view.of(found.decode)
            call.sink = call.reply if job.stream else None
            if call.reply.started:
                rest = await self._recovery.rest(call, job, prefill)
                if rest is None:
                    return
                job, call.sink = rest
            if call.sent is not None:
                call.reply.patience_seconds = between_pieces_seconds(flight, job.stream_interval)
            if prefill is not decode:
                await self._two_legs(call, job, flight, prefill, decode)
            else:
                await self._one_leg(call, job, flight, prefill)
        finally:
            if self._preempts:
                self._under_way.pop(flight, None)

    def _preempt(self, decided: Preempt) -> None:
        """End requests of lower classes that still wait for their prefill: no token of them was sent."""
        for victim in decided.victims:
            task, reply = self._under_way.pop(victim, (None, None))
            if task is None or reply is None or reply.started:
                continue  # a stream that is being resumed: its client has tokens
            self._cluster.finish(victim, self._loop.time())
            if reply.verdict is None:
                reply.verdict = rejected(Reason.PREEMPTED, decided.retry_after_seconds)
                task.cancel()

    def _after_failure(self, call: Call, failed: LegFailedError) -> None:
        """Raises RequestError unless another attempt may be made."""
        logger.warning("leg_failed id=%s attempt=%d cause=%s", call.reply.request_id.decode(), call.attempts, failed)
        call.fruitless += 1
        if failed.failure is not Failure.CONNECT or failed.leg != "decode":
            call.held = None  # the worker may have begun to pull, and what is pulled is freed
        if failed.failure in DOUBTFUL:
            call.accused.append(failed)
        if failed.failure is Failure.STALL:
            self._patience.lost()
        if call.fruitless >= _MAX_ATTEMPTS or call.attempts >= _MOST_ATTEMPTS:
            raise self._recovery.gave_up(call, "Several workers failed to serve the request. Retry it.") from failed
        self._metrics.retries[failed.leg] += 1

    async def _two_legs(self, call: Call, job: Job, flight: Flight, prefill: Worker, decode: Worker) -> None:
        call.path = f"{prefill.name},{decode.name}"
        reply = call.reply
        held = call.held
        if held is not None and held.worker is prefill and held.usable(self._loop.time()):
            if not job.stream:
                call.first_token_at = held.done_at
            self._cluster.prefill_done(flight, self._loop.time(), prompt_tokens=call.prompt_tokens)
            self._metrics.legs["prefill", "held"] += 1
            await self._last_leg(call, job, decode, "decode", job.decode_body(held.kv))
            return
        started_at = self._loop.time()
        deadline = min(call.deadline, started_at + self._prefill_timeout_seconds)
        answer = await self._legs.run(
            "prefill", prefill, job.path, reply.request_id, job.prefill_body(), deadline=deadline,
            patience=started_at + self._patience.first_answer_seconds(call),
        )  # fmt: skip
        if answer.status != _OK:
            _pass_on(call, answer)
            return
        if call.accused:
            self._convict(call, "prefill")
        prefilled_at = self._loop.time()
        self._metrics.prefill_leg_seconds.observe(prefilled_at - started_at)
        if not job.stream:
            call.first_token_at = prefilled_at
        prefilled = read_answer(answer.body)
        kv = prefilled.usable_kv if prefilled is not None else None
        if prefilled is not None and not reply.started:
            call.note_usage(prefilled.usage, output=False)
        self.first_tokens.pass_time(prefilled_at)
        self._cluster.prefill_done(flight, prefilled_at, prompt_tokens=call.prompt_tokens)
        if kv is None:
            self._metrics.legs["prefill", "no_kv"] += 1
        elif not reply.started:
            call.held = HeldPrefill(worker=prefill, kv=kv, done_at=prefilled_at)
        await self._last_leg(call, job, decode, "decode", job.decode_body(kv))

    async def _one_leg(self, call: Call, job: Job, flight: Flight, worker: Worker) -> None:
        call.path = worker.name
        if job.stream:
            call.reply.on_begin = partial(self._first_token, flight)
        elif flight.route.ttft_seconds < _LONGEST_GUESS_SECONDS:
            self.first_tokens.expect(flight, self._loop.time() + flight.route.ttft_seconds)
        await self._last_leg(call, job, worker, "whole", job.whole_body())

    def _first_token(self, flight: Flight) -> None:
        now = self._loop.time()
        self.first_tokens.pass_time(now)
        self._cluster.prefill_done(flight, now)

    async def _last_leg(self, call: Call, job: Job, worker: Worker, leg: str, body: bytes) -> None:
        """The leg whose answer is the client's."""
        reply = call.reply
        sink = call.sink
        if not reply.started:
            reply.path_headers = b"x-fulcrum-path: %b\r\n" % call.path.encode()
        if call.accused and sink is not None:
            reply.on_begin = partial(self._begun, call, reply.on_begin)
        now = self._loop.time()
        answer = await self._legs.run(
            leg, worker, job.path, reply.request_id, body, deadline=call.deadline, sink=sink,
            patience=now + self._patience.last_leg_seconds(call, job),
        )  # fmt: skip
        if call.accused and answer.status == _OK:
            self._convict(call)
        if not answer.streamed:
            _pass_on(call, answer)
            return
        reply.stream_end()
        call.first_token_at = reply.began_at
        if sink is not reply:
            self._recovery.ended(call)
        else:
            call.note_usage(reply.usage, output=True)
            if call.output_tokens is None:
                call.output_tokens = call.streamed_tokens(done=True)

    def _begun(self, call: Call, on_begin: Callable[[], None] | None) -> None:
        if on_begin is not None:
            on_begin()
        self._convict(call)

    def _convict(self, call: Call, leg: str = "") -> None:
        """Another worker serves `call` (or its `leg`): what failed at it is the workers' fault, not the request's."""
        guilty = [failed for failed in call.accused if leg in ("", failed.leg)]
        call.accused = [failed for failed in call.accused if failed not in guilty]
        for failed in guilty:
            self._view.failed(failed.worker, self._loop.time())


def _pass_on(call: Call, answer: Answer) -> None:
    """A complete answer, of whatever status, is the client's. Raises RequestError when it has a part of one already."""
    if call.reply.started:
        raise upstream_failed(f"A worker answered {answer.status} when it was to go on with the answer. Retry it.")
    call.reply.send(answer.status, answer.content_type, answer.body)
    if answer.status == _OK and len(answer.body) <= _READ_USAGE_BYTES:
        read = read_answer(answer.body)
        if read is not None:
            call.note_usage(read.usage, output=True)


def _engine_priorities(door: FrontDoor) -> tuple[Raw, ...]:
    """What each class is to the engines' schedulers, where lower comes first; empty where there is one class only."""
    classes = door.classes
    return tuple(Raw(b"%d" % -priority) for priority in classes.priorities) if len(classes) > 1 else ()
