"""Passes one request on: to the cluster of its model and conversation, and to another one when that turns it away.

Compiled (hatch_build.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fulcrum.front.choice import soonest, turned_away
from fulcrum.gateway.api_formats.bodies import read_usage
from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.errors import RequestError, no_worker, timed_out, upstream_failed
from fulcrum.gateway.front.asked import BYTES_PER_TOKEN, Asked, conversation, read_asked
from fulcrum.gateway.front.clusters import Cluster, Clusters
from fulcrum.gateway.front.heartbeat import SILENT_SECONDS
from fulcrum.gateway.front.metrics import FrontMetrics
from fulcrum.gateway.front.models import Model, Models
from fulcrum.gateway.front.passing import Passing, passed_lines, wait_seconds
from fulcrum.gateway.front.renaming import with_model
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Answer, Excuse, Failure, UpstreamError
from fulcrum.gateway.unhandled import describe

logger = logging.getLogger(__name__)

# Plain values: looking up a member of an enumeration costs half a microsecond.
_OK: Final = 200
_ALWAYS: Final = Excuse.ALWAYS
CLIENT_CLOSED: Final = 499
"""Code in metrics of a request whose client left."""
_SILENT: Final = "silent"
_FULL: Final = "full"
"""Causes in metrics of a cluster that was not asked: it answers nothing; it holds half of all clients."""
_NOT_REACHED: Final = frozenset((Failure.CONNECT.value, _SILENT, _FULL))
_AGAIN: Final = frozenset((Failure.CONNECT, Failure.RESET, Failure.STALE))
"""After these the same cluster is asked once more: another one of its gateways may answer."""


class Forwarder:
    """Serves what needs a cluster."""

    def __init__(
        self,
        models: Models,
        clusters: Clusters,
        metrics: FrontMetrics,
        loop: asyncio.AbstractEventLoop,
        *,
        key: bytes,
        timeout_seconds: float,
        most_clients: Callable[[], int],
    ) -> None:
        """`key`: of the digests of conversations. `timeout_seconds`: longest time of a request.

        `most_clients`: how many this front serves at once.
        """
        self._models = models
        self._clusters = clusters
        self._metrics = metrics
        self._loop = loop
        self._key = key
        self._timeout_seconds = timeout_seconds
        self._most_clients = most_clients

    async def serve(self, request: Request, response: Response) -> None:
        """Answer one request; raises nothing. A cancelled one is answered with `response.verdict`, if there is one."""
        began_at = self._loop.time()
        response.stall_seconds = SILENT_SECONDS
        name, served_by = "", ""
        error: RequestError | None = None
        try:
            asked = read_asked(request.body)
            model = self._models.find(asked.model)
            name = model.route.name
            key = model.authenticate(request.headers)
            tokens = len(request.body) / BYTES_PER_TOKEN
            model.charge(key, tokens, began_at)
            call = _Call(
                request=request,
                response=response,
                asked=asked,
                model=model,
                key=key,
                tokens=tokens,
                began_at=began_at,
            )
            served_by = await self._try(call)
        except RequestError as refused:
            error = refused
        except asyncio.CancelledError:
            error = response.verdict
            if error is None:
                response.status = CLIENT_CLOSED
        except Exception as crash:  # noqa: BLE001  the edge of one request: the front must go on serving the others
            logger.error("request_crashed id=%s error=%s", request.request_id.decode(), describe(crash))  # noqa: TRY400
            error = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The gateway failed.")
        if error is not None:
            response.fail(error)
        code = error.status.value if error is not None and not response.streaming else response.status
        self._metrics.requests[name, served_by, int(code)] += 1
        self._metrics.duration_seconds.observe(self._loop.time() - began_at)

    async def _try(self, call: _Call) -> str:
        """Ask clusters until one answers; returns its name. Raises RequestError."""
        model = call.model
        order = model.choice.order(conversation(call.asked, call.request.headers, self._key))
        rejections: list[tuple[Cluster, Answer]] = []
        reached = False
        for name in order:
            cluster = self._clusters.get(name)
            if cluster is None:
                continue
            passing = Passing(call.response, cluster.line)
            outcome = self._unasked(cluster) or await self._ask_twice(cluster, call, passing)
            if isinstance(outcome, str):
                if call.response.started:
                    self._break_off(call, passing)
                    return name
                why = outcome
                reached = reached or outcome not in _NOT_REACHED
            elif turned_away(outcome.status):
                rejections.append((cluster, outcome))
                why = str(outcome.status)
            else:
                _finish(call, cluster, outcome)
                return name
            self._metrics.fallbacks[model.route.name, name, why] += 1
        model.correct(call.key, -call.tokens)
        if not rejections:
            raise (
                upstream_failed("No cluster of this model answers.")
                if reached
                else no_worker("No cluster of this model can be reached now.")
            )
        cluster, answer = rejections[soonest([wait_seconds(answer) for _, answer in rejections])]
        _send(call.response, cluster, answer)
        return cluster.known.name

    def _unasked(self, cluster: Cluster) -> str | None:
        """Why a cluster is not to be asked now; None: it is."""
        if cluster.silent:
            return _SILENT
        return _FULL if cluster.in_flight >= max(self._most_clients() // 2, 1) else None

    async def _ask_twice(self, cluster: Cluster, call: _Call, passing: Passing) -> Answer | str:
        """The answer of a cluster, or how it failed. Raises RequestError (504) after the longest time of a request."""
        message = _message(cluster, call)
        deadline = call.began_at + self._timeout_seconds
        again = True
        while True:
            cluster.in_flight += 1
            try:
                answer = await cluster.pool.exchange(
                    message, sink=passing, deadline=deadline, silence_seconds=SILENT_SECONDS, excuse=_ALWAYS
                )
            except UpstreamError as error:
                if passing.done:  # the client has all of it; what broke is the connection's end
                    return Answer(status=_OK, content_type=b"", body=b"", streamed=True)
                failure = error.failure
            else:
                cluster.heard_at = self._loop.time()
                return answer
            finally:
                cluster.in_flight -= 1
            if failure is Failure.STALL and not cluster.silent:
                cluster.silent = True
                logger.warning(
                    "cluster_silent cluster=%s seconds=%g want=an answer to /health", cluster.known.name, SILENT_SECONDS
                )
            if not call.response.started:
                if failure is Failure.TIMEOUT:
                    raise timed_out()
                if again and failure in _AGAIN:
                    again = False
                    continue
            return failure.value

    def _break_off(self, call: _Call, passing: Passing) -> None:
        """The stream ended before its end; the cluster may have said why in its last event."""
        if not passing.told_error:
            call.response.fail(upstream_failed("The cluster broke the stream off."))
            return
        call.response.stream_end()
        call.response.close_after = True


class _Call:
    """One request on its way."""

    __slots__ = ("asked", "began_at", "key", "model", "request", "response", "tokens")

    def __init__(
        self,
        *,
        request: Request,
        response: Response,
        asked: Asked,
        model: Model,
        key: ApiKey | None,
        tokens: float,
        began_at: float,
    ) -> None:
        self.request = request
        self.response = response
        self.asked = asked
        self.model = model
        self.key = key
        self.tokens = tokens
        """That it was charged for."""
        self.began_at = began_at


def _message(cluster: Cluster, call: _Call) -> bytes:
    """The request as a cluster is sent it. Raises RequestError (400)."""
    request, known, model = call.request, cluster.known, call.model
    body = request.body
    if call.asked.model != (model.route.adapter or known.served_name):
        body = with_model(body, model.adapter or cluster.model)
    keys = known.takes_keys or model.keys is None
    return cluster.request(request.path, request.request_id, request.headers, body, keys=keys)


def _send(response: Response, cluster: Cluster, answer: Answer) -> None:
    response.send(answer.status, answer.content_type, answer.body, cluster.line + passed_lines(answer.head))


def _finish(call: _Call, cluster: Cluster, answer: Answer) -> None:
    """Answer, and charge the model and the key for what it came to."""
    if answer.streamed:
        call.response.stream_end()
        call.model.correct(call.key, float(call.response.events))
        return
    _send(call.response, cluster, answer)
    usage = read_usage(answer.body) if call.model.counts_tokens else None
    if usage is not None and usage.prompt_tokens is not None:
        call.model.correct(call.key, usage.prompt_tokens + (usage.completion_tokens or 0) - call.tokens)
