"""One inference request: choose workers, run its leg or legs, try again elsewhere, account for it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.answer import Answer, Failure, StreamSink, UpstreamError
from fulcrum.gateway.body import CHAT_PATH, COMPLETIONS_PATH, Job, Usage, read_answer, read_job
from fulcrum.gateway.class_metrics import ClassMetrics
from fulcrum.gateway.errors import SERVER_ERROR, RequestError, no_worker, upstream_failed
from fulcrum.gateway.metrics import DEFAULT_CLASS, Metrics
from fulcrum.gateway.prompt_estimate import PromptEstimate
from fulcrum.gateway.reply import Reply
from fulcrum.gateway.request import Request
from fulcrum.gateway.slo import judge_latency, judge_refusal
from fulcrum.gateway.stream_usage import UsageTail, asks_for_usage
from fulcrum.gateway.workers import Worker, WorkerView
from fulcrum.routing import NobodyThere, OneLeg, TwoLegs, plan

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
# Plain numbers: looking up a member of HTTPStatus costs half a microsecond.
_OK: Final = 200
_SERVER_ERRORS: Final = 500
_LEARN_EVERY: Final = 4
"""One answered request of so many teaches the bytes of a token: it costs half a microsecond."""
_UNBOUNDED: Final = 1 << 62
_READ_USAGE_BYTES: Final = 256 * 1024
CLIENT_CLOSED: Final = 499
"""Code in metrics and logs of a request whose client left."""


class LegFailedError(Exception):
    """A leg failed on `worker` in a way that another worker may not."""

    def __init__(self, worker: Worker, leg: str, failure: Failure) -> None:
        super().__init__(f"{leg} on {worker.name}: {failure}")
        self.worker = worker
        self.leg = leg


@dataclass(slots=True, kw_only=True)
class _Call:
    """One request on its way, and what is known of it when it ends."""

    route: str
    reply: Reply
    started_at: float
    deadline: float
    qos_class: str = DEFAULT_CLASS
    job: Job | None = None
    """None while (and if never) the body could be read."""
    attempts: int = 0
    path: str = "-"
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_at: float = 0.0
    """Loop time; 0 while unknown."""

    def note_usage(self, usage: Usage | None, *, output: bool) -> None:
        if usage is not None:
            self.prompt_tokens = usage.prompt_tokens
            if output and usage.completion_tokens is not None:
                self.output_tokens = usage.completion_tokens


class Inference:
    """Serves completions and chat completions over the workers of `view`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        view: WorkerView,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        access_log: bool,
    ) -> None:
        self._served_name = config.served_name
        self._request_timeout_seconds = config.limits.request_timeout_seconds
        self._max_model_len = config.max_model_len or _UNBOUNDED
        self._slo_ttft_seconds = config.slo_ttft_seconds
        self._slo_tpot_seconds = config.slo_tpot_seconds
        self.has_slo = self._slo_ttft_seconds is not None or self._slo_tpot_seconds is not None
        self._view = view
        self._metrics = metrics
        self._loop = loop
        self._access_log = access_log
        self._turn = 0
        self._prompts = {CHAT_PATH: PromptEstimate(), COMPLETIONS_PATH: PromptEstimate()}

    async def serve(self, route: str, request: Request, reply: Reply) -> None:
        """Answer one request; raises nothing. A cancelled one is answered with `reply.verdict`, if there is one."""
        now = self._loop.time()
        call = _Call(route=route, reply=reply, started_at=now, deadline=now + self._request_timeout_seconds)
        error: RequestError | None = None
        try:
            job = call.job = read_job(route, request.body, self._served_name)
            self._metrics.of_class(call.qos_class).arrivals += 1
            await self._attempts(call, job)
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
        self._account(call, error)

    async def _attempts(self, call: _Call, job: Job) -> None:
        tried: set[str] = set()
        while True:
            self._turn += 1
            call.attempts += 1
            call.first_token_at = 0.0  # of an attempt that failed
            path = plan(self._view.workers, whole=job.whole, exclude=tried, turn=self._turn)
            try:
                if isinstance(path, TwoLegs):
                    await self._two_legs(call, job, path.prefill, path.decode)
                elif isinstance(path, OneLeg):
                    call.path = path.worker.name
                    await self._last_leg(call, job, path.worker, "whole", job.whole_body())
                elif tried:
                    raise upstream_failed("No worker could serve the request. Retry it.")
                elif isinstance(path, NobodyThere):
                    raise no_worker("No worker is ready.")
                else:
                    raise no_worker("No worker is in a role that serves requests.")
            except LegFailedError as failed:
                self._after_failure(call, failed)
                tried.add(failed.worker.name)
            else:
                return

    def _after_failure(self, call: _Call, failed: LegFailedError) -> None:
        """Raises RequestError unless another attempt may be made."""
        if call.reply.started:
            raise upstream_failed("The worker was lost in the middle of the answer. Retry the request.") from failed
        logger.warning("leg_failed id=%s attempt=%d cause=%s", call.reply.request_id.decode(), call.attempts, failed)
        if call.attempts >= _MAX_ATTEMPTS:
            raise upstream_failed("Several workers failed to serve the request. Retry it.") from failed
        self._metrics.retries[failed.leg] += 1

    async def _two_legs(self, call: _Call, job: Job, prefill: Worker, decode: Worker) -> None:
        call.path = f"{prefill.name},{decode.name}"
        started_at = self._loop.time()
        # A third, so that a prefill worker that hangs leaves time for two more attempts.
        deadline = min(call.deadline, started_at + self._request_timeout_seconds / 3)
        prefill.prefill_legs += 1
        decode.decode_legs += 1  # from the start: it is promised to this request
        try:
            answer = await self._leg(call, job, prefill, "prefill", job.prefill_body(), deadline=deadline)
        finally:
            prefill.prefill_legs -= 1
            decode.decode_legs -= 1
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
        if kv is None:
            self._metrics.legs["prefill", "no_kv"] += 1
        await self._last_leg(call, job, decode, "decode", job.decode_body(kv))

    async def _last_leg(self, call: _Call, job: Job, worker: Worker, leg: str, body: bytes) -> None:
        """The leg whose answer is the client's."""
        reply = call.reply
        reply.path_headers = b"x-fulcrum-path: %b\r\n" % call.path.encode()
        worker.decode_legs += 1
        try:
            sink: StreamSink | None = reply if job.stream else None
            # Only where the prompt's length would have to be guessed: it costs a call for each piece of the stream.
            tail = UsageTail(reply) if sink and call.prompt_tokens is None and asks_for_usage(job) else None
            answer = await self._leg(call, job, worker, leg, body, deadline=call.deadline, sink=tail or sink)
        finally:
            worker.decode_legs -= 1
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
        call: _Call,
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
        worker.worked()
        self._metrics.legs[leg, "answered"] += 1
        return answer

    def _leg_failure(self, worker: Worker, leg: str, failure: Failure) -> LegFailedError:
        worker.failed()
        self._metrics.legs[leg, failure.value] += 1
        return LegFailedError(worker, leg, failure)

    def _account(self, call: _Call, error: RequestError | None) -> None:
        duration_seconds = self._loop.time() - call.started_at
        reason = error.reason.value if error is not None and error.reason is not None else ""
        code = error.status.value if error is not None else int(call.reply.status)
        metrics = self._metrics
        metrics.requests[call.route, code, reason, call.qos_class] += 1
        metrics.duration_seconds.observe(duration_seconds)
        counts = metrics.of_class(call.qos_class)
        if call.job is not None:
            self._account_prompt(call, call.job, counts)
            if error is None and code == _OK:
                self._account_answer(call, call.job, counts, duration_seconds)
            elif self.has_slo and (refused := judge_refusal(code, reason)) is not None:
                counts.slo[refused] += 1
        level = logging.WARNING if code >= _SERVER_ERRORS else logging.INFO
        if self._access_log or level > logging.INFO:
            logger.log(
                level,
                "request id=%s route=%s code=%d reason=%s path=%s attempts=%d seconds=%.4f prompt_tokens=%s "
                "output_tokens=%s",
                call.reply.request_id.decode(), call.route, code, reason or "-", call.path, call.attempts,
                duration_seconds, call.prompt_tokens, call.output_tokens,
            )  # fmt: skip

    def _account_prompt(self, call: _Call, job: Job, counts: ClassMetrics) -> None:
        """Prompt length of any request that could be read: those that were turned away are load too."""
        if call.prompt_tokens is None:
            call.prompt_tokens = min(self._prompts[job.path].tokens(job.prompt), self._max_model_len)
        elif self._turn % _LEARN_EVERY == 0:
            self._prompts[job.path].learn(job.prompt, call.prompt_tokens)
        counts.prompt_tokens.observe(call.prompt_tokens)

    def _account_answer(self, call: _Call, job: Job, counts: ClassMetrics, duration_seconds: float) -> None:
        output_tokens = call.output_tokens
        ttft_seconds = tpot_seconds = None
        if output_tokens is not None:
            counts.output_tokens.observe(output_tokens)
        if call.first_token_at:
            ttft_seconds = call.first_token_at - call.started_at
            counts.ttft_seconds.observe(ttft_seconds)
            # Several sequences in one answer (`whole`) share their time: nothing is known of each one's pace.
            if output_tokens is not None and output_tokens > 1 and not job.whole:
                tpot_seconds = (duration_seconds - ttft_seconds) / (output_tokens - 1)
                counts.tpot_seconds.observe(tpot_seconds)
        if self.has_slo:
            outcome = judge_latency(
                ttft_seconds=ttft_seconds,
                tpot_seconds=tpot_seconds,
                slo_ttft_seconds=self._slo_ttft_seconds,
                slo_tpot_seconds=self._slo_tpot_seconds,
            )
            if outcome is not None:
                counts.slo[outcome] += 1
