"""One request to one worker, and what its failure says of the worker."""

from __future__ import annotations

import asyncio
from math import inf

from fulcrum.gateway.http.upstream_answer import Answer, Failure, StreamSink, UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import Worker, WorkerRegistry

# A plain number: looking up a member of HTTPStatus costs half a microsecond.
_SERVER_ERRORS = 500
_UNAUTHORIZED = 401

DOUBTFUL = frozenset((Failure.ERROR_STATUS, Failure.PROTOCOL, Failure.TRUNCATED))
"""Failures of an engine that lives and answers other requests: the request may be at fault. Another worker shows it."""


class LegFailedError(Exception):
    """A leg failed on `worker` in a way that another worker may not."""

    def __init__(self, worker: Worker, leg: str, failure: Failure) -> None:
        super().__init__(f"{leg} on {worker.name}: {failure}")
        self.worker = worker
        self.leg = leg
        self.failure = failure


class Legs:
    """Sends requests to workers."""

    def __init__(self, registry: WorkerRegistry, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._metrics = metrics
        self._loop = loop

    async def run(
        self,
        leg: str,
        worker: Worker,
        path: str,
        request_id: bytes,
        body: bytes,
        *,
        deadline: float,
        failover_deadline: float = inf,
        sink: StreamSink | None = None,
    ) -> Answer:
        """The answer of `worker`, which may be an error of the client's. Raises LegFailedError.

        `deadline`: loop time by which it must be complete; `failover_deadline`: by which it, or a stream's first byte,
        must be there, or another worker is to try.
        """
        if worker.changed_at is not None:
            self._metrics.role_change_lag_seconds.observe(self._loop.time() - worker.changed_at)
            worker.changed_at = None
        request = worker.pool.request(path, request_id, body)
        answers = worker.answers
        try:
            answer = await worker.pool.exchange(request, sink=sink, deadline=min(deadline, failover_deadline))
        except UpstreamError as error:
            failure = error.failure
            if failure is Failure.TIMEOUT and self._loop.time() < deadline:
                failure = Failure.STALL
            # One that answers others meanwhile is late, and no more than that.
            late = failure in (Failure.STALL, Failure.TIMEOUT) and worker.answers != answers
            raise self._failed(worker, leg, failure, blame=not late) from error
        if answer.status == _UNAUTHORIZED:  # the client's own key was looked at here, and not sent on
            raise self._failed(worker, leg, Failure.REFUSED)
        if answer.status >= _SERVER_ERRORS:
            raise self._failed(worker, leg, Failure.ERROR_STATUS)
        self._registry.worked(worker)
        self._metrics.legs[leg, "answered"] += 1
        return answer

    def _failed(self, worker: Worker, leg: str, failure: Failure, *, blame: bool = True) -> LegFailedError:
        if failure in DOUBTFUL:
            worker.doubts += 1
        elif blame and failure is not Failure.DIVERGED:
            self._registry.failed(worker, self._loop.time())
        self._metrics.legs[leg, failure.value] += 1
        return LegFailedError(worker, leg, failure)
