"""One inference request from its arrival to its answer and what is counted of it."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from time import perf_counter
from typing import Final

from msgspec import Raw

from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.api_formats.bodies import check_body, read_checked, read_request, read_tokenizing
from fulcrum.gateway.api_formats.inference_request import (
    RESPONSES_PATH,
    TOKENIZING_PATHS,
    InferenceRequest,
    ServedModel,
)
from fulcrum.gateway.dispatch.accounting import Accounts
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.attempt import Attempts
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.recorder import Recorder
from fulcrum.gateway.dispatch.span_attributes import operation, request_attributes
from fulcrum.gateway.errors import RequestError, bad_request
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.tracing.trace import Tracing, failure_type
from fulcrum.gateway.unhandled import describe
from fulcrum.gateway.workers.adapters import Adapters
from fulcrum.gateway.workers.registry import WorkerRegistry

logger = logging.getLogger(__name__)

CLIENT_CLOSED: Final = 499
"""Code in metrics and logs of a request whose client left."""
_LARGE_BYTES: Final = 512 * 1024
"""A larger body is read in slices. Reading takes 1.5 ns a byte and more (benchmarks/hostile.py)."""
_LONGEST_REST_SECONDS: Final = 0.05
"""Longest pause between two slices of a large body: bounds what a busy machine adds to a request."""


class Inference:
    """Serves requests that workers answer."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        served: ServedModel,
        admission: AdmissionControl,
        registry: WorkerRegistry,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        access_log: bool,
        adapters: Adapters,
        tracing: Tracing | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._tracing = tracing
        self._adapters = adapters
        self._served = served
        self._request_timeout_seconds = config.limits.request_timeout_seconds
        self._salts_prefixes = config.salt_prefixes
        self._admission = admission
        self._classes = admission.classes
        self._loop = loop
        self._attempts = Attempts(config=config, admission=admission, registry=registry, metrics=metrics, loop=loop)
        self.hold = self._attempts.hold
        self._priorities = _engine_priorities(admission)
        self._accounts = Accounts(
            config=config, admission=admission, metrics=metrics, loop=loop, access_log=access_log, recorder=recorder
        )
        self.has_slo = self._accounts.has_slo
        self._resting = asyncio.Lock()
        """Held while work on a large request rests, so that such work fills half of the event loop's time at most."""

    async def serve(self, http_request: Request, response: Response) -> None:
        """Answer one request; raises nothing. A cancelled one is answered with `response.verdict`, if there is one."""
        now = self._loop.time()
        qos = self._classes.rest
        exchange = Exchange(
            route=http_request.path,
            response=response,
            started_at=now,
            deadline=now + self._request_timeout_seconds,
            qos_class=self._classes.names[qos],
        )
        error: RequestError | None = None
        if self._tracing is not None:
            name = f"{operation(exchange.route)} {self._served.name}"
            exchange.trace = self._tracing.begin(name, http_request.headers)
        try:
            key = exchange.key = http_request.require_key()
            qos = self._admission.class_of(key, http_request.headers)
            exchange.qos_class = self._classes.names[qos]
            if http_request.path in TOKENIZING_PATHS:
                await self._tokenize(exchange, http_request)
            else:
                await self._infer(exchange, http_request, qos)
        except RequestError as refused:
            error = refused
        except asyncio.CancelledError:
            error = response.verdict
            if error is None:
                response.status = CLIENT_CLOSED
        except Exception as crash:  # noqa: BLE001  the edge of one request: the gateway must go on serving the others
            logger.error("request_crashed id=%s error=%s", http_request.request_id.decode(), describe(crash))  # noqa: TRY400
            error = RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The gateway failed.")
        self._end(exchange, error)

    async def _infer(self, exchange: Exchange, http_request: Request, qos: int) -> None:
        """Read a request, let it in and have it served. Raises RequestError."""
        key = exchange.key
        large = len(http_request.body) > _LARGE_BYTES
        if large:
            request = await self._read_large(http_request)
        else:
            request = read_request(http_request.path, http_request.body, self._served)
        if key is not None and self._salts_prefixes:
            request.fields["cache_salt"] = Raw(key.cache_salt(bytes(request.fields.get("cache_salt", b""))))
        if request.stream and self._classes.batch[qos]:
            raise bad_request("A batch request makes way for others, so it cannot be streamed.", param="stream")
        began = perf_counter()
        incoming = self._admission.incoming(request, qos, http_request.headers)
        if key is not None:
            key.charge(incoming.prompt_tokens + incoming.output_tokens, exchange.started_at)
        if request.path == RESPONSES_PATH:  # its engine's id is not that of the head
            request.fields["request_id"] = Raw(b'"resp_%b"' % http_request.request_id)
        if self._priorities:
            request.fields["priority"] = self._priorities[qos]
        # From here on it is load, whatever becomes of it.
        exchange.request, exchange.incoming = request, incoming
        self._accounts.arrived(exchange, incoming)
        if large:
            await self._rest(began)
        self.hold.began()
        try:
            await self._attempts.run(exchange, request, incoming)
        finally:
            self.hold.ended(exchange)

    def _end(self, exchange: Exchange, error: RequestError | None) -> None:
        try:
            if error is not None:
                exchange.response.fail(error)
                if exchange.response.done:
                    error = None  # the client has the whole answer
            self._accounts.close(exchange, error)
            if exchange.trace is not None and exchange.trace.sampled:
                code = int(exchange.response.status) if error is None else error.status.value
                attributes = request_attributes(exchange, self._model_of(exchange), code, error)
                failure = "cancelled" if error is None and code == CLIENT_CLOSED else failure_type(error)
                exchange.trace.end(attributes, failure)
        except Exception as crash:  # noqa: BLE001  the client's next requests come on the same connection
            request_id = exchange.response.request_id.decode()
            logger.error("account_crashed id=%s error=%s", request_id, describe(crash))  # noqa: TRY400
        if exchange.stream_log is not None:
            exchange.stream_log.close()

    def _model_of(self, exchange: Exchange) -> str:
        """The name by which a request is told of: an adapter's only where the spec lists it."""
        adapter = exchange.request.adapter if exchange.request is not None else ""
        return adapter if adapter in self._adapters.listed else self._served.name

    async def _tokenize(self, exchange: Exchange, http_request: Request) -> None:
        """Have a worker tokenize or detokenize; a key is charged one request. Raises RequestError."""
        if exchange.key is not None:
            exchange.key.charge(0.0, exchange.started_at)
        began = perf_counter()
        for _ in check_body(http_request.body):
            began = await self._rest(began)
        body = read_tokenizing(http_request.path, http_request.body, self._served)
        if len(body) > _LARGE_BYTES:
            await self._rest(began)
        await self._attempts.tokenizing.run(exchange, body)

    async def _read_large(self, http_request: Request) -> InferenceRequest:
        """Read a large request in slices, and let others have the event loop in between. Raises RequestError."""
        began = perf_counter()
        for _ in check_body(http_request.body):
            began = await self._rest(began)
        began = await self._rest(began)
        request = read_checked(http_request.path, http_request.body, self._served)
        began = await self._rest(began)
        request.measure_media()
        await self._rest(began)
        return request

    async def _rest(self, began: float) -> float:
        """Rest for as long as was worked since `began`, by a clock that does not stand still within a turn of the loop.

        Returns the time after it.
        """
        worked_seconds = perf_counter() - began
        async with self._resting:
            await asyncio.sleep(min(worked_seconds, _LONGEST_REST_SECONDS))
        return perf_counter()


def _engine_priorities(admission: AdmissionControl) -> tuple[Raw, ...]:
    """What each class is to the engines' schedulers, where lower comes first; empty where there is one class only."""
    classes = admission.classes
    return tuple(Raw(b"%d" % -priority) for priority in classes.priorities) if len(classes) > 1 else ()
