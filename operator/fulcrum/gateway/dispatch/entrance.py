"""The one way in: a request is let in at once, after it was held or queued, or refused. Compiled (hatch_build.py).

Held (`hold.py`) are requests that find no worker, where `balance.idleAfter` lets the cluster sleep. In the admission
queue wait those that there is no room for now, where `admission.queue` is set: their clients get no bytes, so that one
that is refused in the end gets its own status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from fulcrum.admission import ANYONE, Admit, Preempt, Reject, RequestQueue, Waiting, capped
from fulcrum.api.reasons import Reason
from fulcrum.gateway.api_formats.inference_request import InferenceRequest, cap_output
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.hold import Hold
from fulcrum.gateway.errors import RequestError
from fulcrum.routing import Flight, Incoming

_FRESH_SECONDS: Final = 0.002
"""A pass over the queue that is not older is not repeated for a request that comes: bounds what passes cost in an
overload to a tenth of a processor."""


class Admitted:
    """A request that was let in and started."""

    def __init__(self, incoming: Incoming, flight: Flight, output_cap: int | None) -> None:
        self.incoming = incoming
        self.flight = flight
        self.output_cap = output_cap
        """Most output tokens that it may have; None: as many as it asks for."""


class Entrance:
    """The way in of one gateway."""

    def __init__(
        self,
        admission: AdmissionControl,
        hold: Hold,
        loop: asyncio.AbstractEventLoop,
        preempt: Callable[[Preempt], None],
    ) -> None:
        """`preempt` ends the requests that make way for another one."""
        self._admission = admission
        self._hold = hold
        self._queue = admission.queue
        self._loop = loop
        self._preempt = preempt
        self._futures: dict[Waiting, asyncio.Future[Admitted]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._passed_at = 0.0

    async def enter(self, exchange: Exchange, incoming: Incoming, *, streams: bool) -> Admitted:
        """Let a request in, and start it. Raises RequestError (429, 503 or 400)."""
        queue, now = self._queue, self._loop.time()
        if queue is not None and len(queue) and now - self._passed_at > _FRESH_SECONDS:
            self._settle(queue, now)
        decided = self._admission.core.consider(incoming, self._admission.cluster, now)
        if isinstance(decided, Reject) and decided.reason is Reason.NO_WORKER:
            if self._admission.is_hopeless(incoming):
                raise self._admission.refusal(incoming, decided)
            if self._hold.places:
                return await self._held(exchange, incoming, now, streams=streams)
        if queue is not None:
            client = ANYONE if exchange.key is None else exchange.key.client
            waiting = queue.arrive(incoming, client, decided, now)
            if waiting is not None:
                return await self._wait(queue, waiting)
        return self._start(incoming, decided, now)

    async def _held(self, exchange: Exchange, incoming: Incoming, now: float, *, streams: bool) -> Admitted:
        """Let a request in that found no worker, once there is one. Raises RequestError (503)."""
        found = await self._hold.wait(exchange, incoming, streams=streams)
        later = self._loop.time()
        held = msgspec.structs.replace(incoming, waited_seconds=later - now)
        return self._start(held, Admit(found), later)

    async def _wait(self, queue: RequestQueue, waiting: Waiting) -> Admitted:
        future: asyncio.Future[Admitted] = self._loop.create_future()
        self._futures[waiting] = future
        if self._timer is None:
            self._timer = self._loop.call_later(queue.pass_seconds, self._pass)
        try:
            return await future
        except asyncio.CancelledError:
            # Its client left, or its time is over; it may have been let in in the same turn of the loop.
            if self._futures.pop(waiting, None) is not None:
                queue.leave(waiting)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._admission.cluster.finish(future.result().flight, self._loop.time())
            raise
        finally:
            self._admission.queue_wait_seconds.observe(self._loop.time() - waiting.arrived_at)

    def _pass(self) -> None:
        """Look at what waits, and again later."""
        self._timer = None
        queue = self._queue
        if queue is not None:
            self._settle(queue, self._loop.time())
            if self._futures:
                self._timer = self._loop.call_later(queue.pass_seconds, self._pass)

    def _settle(self, queue: RequestQueue, now: float) -> None:
        self._passed_at = now
        for waiting, decided in queue.settle(self._admission.cluster, now):
            future = self._futures.pop(waiting)
            try:
                future.set_result(self._start(waiting.at(now), decided, now))
            except RequestError as refused:
                future.set_exception(refused)

    def _start(self, incoming: Incoming, decided: Admit | Preempt | Reject, now: float) -> Admitted:
        """Start a request that is let in. Raises RequestError where it is not."""
        accepted = self._admission.accepted(incoming, decided)
        if isinstance(accepted, Preempt):
            self._preempt(accepted)
        cap = accepted.output_cap
        if cap is not None:
            incoming = capped(incoming, cap)
        return Admitted(incoming, self._admission.cluster.start(incoming, accepted.route, now), cap)


def degrade(
    exchange: Exchange, request: InferenceRequest, admission: AdmissionControl, output_cap: int
) -> InferenceRequest:
    """Return the request with no more than so many output tokens; where that is fewer, say so to its client."""
    found = cap_output(request, output_cap)
    if found is not request:
        exchange.request = found
        admission.degraded[0 if exchange.incoming is None else exchange.incoming.qos] += 1
        exchange.response.own_headers = b"x-fulcrum-degraded: max-output-tokens=%d\r\n" % output_cap
    return found
