"""A stream that lost its worker goes on with another: what is left of it, who takes it, and when to give up."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec

from fulcrum.gateway.dispatch.admit import FrontDoor
from fulcrum.gateway.dispatch.continuation import Continuation, Restart
from fulcrum.gateway.dispatch.exchange import Call
from fulcrum.gateway.dispatch.legs import LegFailedError, Legs
from fulcrum.gateway.dispatch.resume import (
    greedy,
    obstacle,
    probe_body,
    prompt_ids,
    rest_job,
    resume_point,
    tokenize_body,
)
from fulcrum.gateway.http.upstream_answer import Failure, StreamSink
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.openai.errors import RequestError, engine_error, upstream_failed
from fulcrum.gateway.openai.inference_request import CHAT_PATH, Job
from fulcrum.gateway.openai.stream_log import SentStream
from fulcrum.gateway.workers.registry import Worker, WorkerView
from fulcrum.routing import Incoming, Route

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 30.0
"""How long a stream waits for a worker that can take it; a client that was answered so far would rather wait."""
_MANY_DOUBTS: Final = 10
"""A worker that failed so many requests in a row serves nobody: it is not the requests' fault."""
_POLL_SECONDS: Final = 0.1
_OK: Final = 200
_LEAST_OUTPUT_TOKENS: Final = 16.0


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Recovery:
    """Resumes streams."""

    def __init__(
        self, *, legs: Legs, door: FrontDoor, view: WorkerView, metrics: Metrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._legs = legs
        self._door = door
        self._view = view
        self._metrics = metrics
        self._loop = loop

    def lost(self, call: Call, job: Job, incoming: Incoming, failed: LegFailedError) -> Incoming:
        """The stream of `call` lost its worker: what is asked for now. Raises RequestError where it cannot go on."""
        sent = call.reply.sent
        if sent is not None:
            sent.read()
            call.reply.sent = None  # from here on it is kept event by event
        sent = call.sent
        why_not = "its answer has more in it than text, or comes in several parts"
        if sent is not None:
            why_not = sent.why_not or obstacle(job)
        if sent is None or why_not:
            raise self._impossible(why_not) from failed
        if not call.lost_at:
            call.lost_at = self._loop.time()
            logger.warning(
                "stream_lost id=%s cause=%s tokens=%d", call.reply.request_id.decode(), failed, len(sent.ids)
            )
        made = len(sent.ids)
        if made > call.tokens_before:
            call.fruitless = 0
        call.tokens_before = made
        asked = call.incoming or incoming
        return msgspec.structs.replace(
            incoming,
            prompt_tokens=asked.prompt_tokens + made,
            output_tokens=max(asked.output_tokens - made, _LEAST_OUTPUT_TOKENS),
        )

    async def detour(self, call: Call, incoming: Incoming, tried: frozenset[str], slow: frozenset[str]) -> Route:
        """Another path; a stream that has begun waits for one. Raises RequestError where there is none.

        `slow`: those of `tried` that only kept the request waiting. They are asked again where nobody else takes it.
        """
        until = min(call.deadline, call.lost_at + WAIT_SECONDS)
        while True:
            now = self._loop.time()
            found = self._door.detour(incoming, tried, now)
            if found is None and slow:
                found = self._door.detour(incoming, tried - slow, now)
            if found is not None:
                return found
            if not call.reply.started or now >= until:
                raise self.gave_up(call, "No worker could serve the request. Retry it.")
            await asyncio.sleep(_POLL_SECONDS)
            # One that was restarted, or has had its pause, may be tried again.
            tried = frozenset(worker.name for worker in self._view.workers if worker.name in tried and worker.suspect)

    def gave_up(self, call: Call, message: str) -> RequestError:
        """The error of a request that found no worker."""
        if call.reply.started:
            self._metrics.resumes["failed"] += 1
        own_errors = [failed for failed in call.accused if failed.failure is Failure.ERROR_STATUS]
        if len(own_errors) == call.attempts and any(_serves_others(failed.worker) for failed in own_errors):
            return engine_error()
        return upstream_failed(message)

    async def rest(self, call: Call, job: Job, worker: Worker) -> tuple[Job, StreamSink] | None:
        """What is left of the stream, to be prefilled on `worker`; None: only its end was, and the client has it now.

        Raises LegFailedError when the worker fails, RequestError when the stream cannot go on.
        """
        sent = call.sent
        if sent is None:
            raise self._impossible("nothing of it was kept")
        if not sent.ids and not sent.chars and sent.finish_reason is None:
            return job, Restart(call.reply, sent, began=partial(self._resumed, call))
        wants_usage = not call.reply.hides_usage
        if call.prompt_ids is None and (sent.finish_reason is None or (wants_usage and call.prompt_tokens is None)):
            call.prompt_ids = await self._probe(call, job, worker)
        if call.prompt_ids is not None:
            call.prompt_tokens = len(call.prompt_ids)
        again = "" if sent.finish_reason is not None else await self._rewind(call, job, worker, sent)
        call.tokens_before = len(sent.ids)
        options = bytes(job.fields.get("stream_options", b""))
        sink = Continuation(
            call.reply,
            sent,
            chat=job.path == CHAT_PATH,
            again=again,
            prompt_tokens=call.prompt_tokens or 0,
            wants_usage=wants_usage,
            wants_every_usage=wants_usage and b'"continuous_usage_stats"' in options,
            began=partial(self._resumed, call),
        )
        if sent.finish_reason is not None:
            sink.finish()
        elif (left := rest_job(job, call.prompt_ids or [], sent)).max_tokens == 0:
            sink.finish_with("length")
        else:
            return left, sink
        self._resumed(call)
        self.ended(call)
        return None

    def ended(self, call: Call) -> None:
        """A stream that was resumed has ended well."""
        sent = call.sent
        if sent is not None:
            sent.read()
            call.output_tokens = len(sent.ids)
            if call.prompt_ids is not None:
                call.prompt_tokens = len(call.prompt_ids)

    def _resumed(self, call: Call) -> None:
        gap_seconds = self._loop.time() - call.lost_at
        call.lost_at = 0.0
        self._metrics.resumes["resumed"] += 1
        self._metrics.resume_gap_seconds.observe(gap_seconds)
        logger.info(
            "stream_resumed id=%s path=%s attempt=%d gap_seconds=%.3f",
            call.reply.request_id.decode(), call.path, call.attempts, gap_seconds,
        )  # fmt: skip

    async def _rewind(self, call: Call, job: Job, worker: Worker, sent: SentStream) -> str:
        """Go back to where the stream can go on; text from there on that the client has already got."""
        point = resume_point(job, sent)
        if point is None:
            raise self._impossible("too much of it was held back for stop strings")
        sent.rewind(point.tokens, point.chars)
        if not point.again or greedy(job):
            return point.again
        # Another sample would not repeat this text, so it is taken for granted, by its likeliest tokens.
        body = tokenize_body(job, point.again)
        answer = await self._leg(call, worker, "/tokenize", body)
        try:
            sent.ids.extend(msgspec.json.decode(answer, type=_Tokens).tokens)
        except msgspec.DecodeError:
            raise self._impossible("a worker did not tell the tokens of its text") from None
        sent.ids_sent = len(sent.ids)
        sent.rewind(len(sent.ids), sent.chars)
        return ""

    async def _probe(self, call: Call, job: Job, worker: Worker) -> list[int]:
        found = prompt_ids(await self._leg(call, worker, job.path, probe_body(job)))
        if found is None:
            raise self._impossible("a worker did not tell the tokens of its prompt")
        return found

    async def _leg(self, call: Call, worker: Worker, path: str, body: bytes) -> bytes:
        reply = call.reply
        answer = await self._legs.run("resume", worker, path, reply.request_id, body, deadline=call.deadline)
        if answer.status != _OK:
            raise self._impossible(f"a worker answered {answer.status} when asked for the prompt's tokens")
        return answer.body

    def _impossible(self, why: str) -> RequestError:
        self._metrics.resumes["impossible"] += 1
        return upstream_failed(
            f"The worker was lost in the middle of the answer, and no other can go on with it: {why}. "
            "Retry the request."
        )


def _serves_others(worker: Worker) -> bool:
    return worker.answers > 0 and worker.doubts < _MANY_DOUBTS
