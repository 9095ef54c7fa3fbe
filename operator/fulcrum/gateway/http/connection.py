"""One client connection: requests answered in order, time-outs, back-pressure, and an orderly end."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from http import HTTPStatus
from typing import Final, cast

from fulcrum.gateway.errors import RequestError, bad_request, overloaded, timed_out
from fulcrum.gateway.http.passage import SILENCE_SECONDS, Passage
from fulcrum.gateway.http.peer import has_left
from fulcrum.gateway.http.places import Place
from fulcrum.gateway.http.request import Request, new_request_id
from fulcrum.gateway.http.request_parser import RequestParser
from fulcrum.gateway.http.response import CONTINUE, Response
from fulcrum.gateway.http.service import Service

_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 64 * 1024 * 1024
_CANCEL_SECONDS: Final = 5.0
_WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
_QUEUED_BYTES: Final = 512
"""What a request takes beside its body."""


class ClientConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_connecting", "_half_closed", "_holds_body", "_lingering_bytes", "_loop", "_parser", "_passage", "_queue",
        "_reading_paused", "_response", "_service", "_task", "_transport", "_write_paused", "deadline",
    )  # fmt: skip

    def __init__(self, service: Service[ClientConnection], loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._parser = RequestParser(service.limits, service.kept_headers, service.authenticate, service.passes)
        self._passage: Passage | None = None
        """The request under way, its last one, is passed on."""
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request | RequestError] = deque()
        self._task: asyncio.Task[None] | None = None
        self._response: Response | None = None
        self._write_paused = False
        self._reading_paused = False
        self._holds_body = False
        """Bytes of its requests count towards the budget."""
        self._half_closed = False
        """The client sends no more."""
        self._lingering_bytes = -1
        self.deadline = math.inf
        """Loop time until which the connection may stay in the state that it is in."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        self._wait(self._service.limits.idle_timeout_seconds)
        place = self._service.places.enter(self)
        if place is Place.SHUT:
            self._transport.abort()
        elif place is Place.NONE:
            self._refuse(overloaded("Too many connections."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._service.places.leave(self)
        if self._write_paused:
            self._keeps_up()
        self._service.bodies.release(self)
        self._queue.clear()
        self.deadline = math.inf
        if self._task is not None:
            self._task.cancel()
        if self._passage is not None:
            self._passage.abort()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._passage is not None:
            self._passage.pause()
        if self._response is not None:
            self._response.pause()
            if not self._response.streaming:
                self._service.response_budget.keep(self, self.unsent_bytes())
        self._service.slow_readers.add(self, self._loop.time())

    def resume_writing(self) -> None:
        self._write_paused = False
        self._keeps_up()
        if self._passage is not None:
            self._passage.resume()
        if self._response is not None:
            self._response.resume()
        elif self._queue and self._task is None:
            self._next()

    def _keeps_up(self) -> None:
        self._service.slow_readers.remove(self)
        self._service.response_budget.release(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering_bytes >= 0:
            self._lingering_bytes -= len(data)
            if self._lingering_bytes < 0:
                self.abort()
            return
        parser = self._parser
        if parser.passed_whole:
            return  # it was the last request of its connection
        was_in_message = parser.in_message
        parser.feed(data)
        if parser.passing and self._pass_on():
            return
        if parser.in_message and not parser.broken:
            self._received_part(begun=was_in_message)
        if parser.ready:
            self._queue.extend(parser.ready)
            parser.ready.clear()
            if self._task is None:
                self._next()
            if self._holds_body or self._queue:
                self._count_bytes()
        # Answers are given in order, so what else the client sends can wait in the kernel. An idle socket is read on:
        # that is how a client's leaving is seen.
        if self._queue and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
            self._service.places.unread.add(self)

    def eof_received(self) -> bool:
        """The client sends no more. True: it still gets the answers to what it has sent."""
        if self._task is None and not self._queue and self._passage is None:
            return False
        self._half_closed = True
        self._service.places.unread.add(self)
        return True

    def _received_part(self, *, begun: bool) -> None:
        """A request is arriving, and not complete."""
        parser = self._parser
        if not parser.head_done:
            if not begun and self._task is None:
                self._wait(self._service.limits.header_timeout_seconds)
            self._count_bytes()
            return
        self._service.places.busy(self)
        if not parser.head_seen:
            parser.head_seen = True
            if parser.unauthorized is not None:
                parser.refuse(parser.unauthorized)  # the body need not be sent
                return
            if self._task is None:
                self._wait_for_body()
        self._count_bytes()

    def _wait_for_body(self) -> None:
        self._wait(self._service.limits.body_timeout_seconds)
        if self._parser.take_continue() and self._transport is not None:
            self._transport.write(CONTINUE)

    def _count_bytes(self) -> None:
        """Count what this client has sent of requests that are not begun; over the budget, the most is given up."""
        held_bytes = self._parser.held_bytes + sum(
            _QUEUED_BYTES + len(queued.body) for queued in self._queue if isinstance(queued, Request)
        )
        bodies = self._service.bodies
        self._holds_body = held_bytes > 0
        if self._holds_body:
            for victim in bodies.hold(self, held_bytes):
                victim.give_up_bodies()
        else:
            bodies.release(self)

    def give_up_bodies(self) -> None:
        """Forget what has arrived of requests that were not begun."""
        self._service.bodies.release(self)
        self._holds_body = False
        self._queue.clear()
        self._parser.refuse(overloaded("There is no room for a request of this size now."))
        self._queue.extend(self._parser.ready)
        self._parser.ready.clear()
        if self._task is None:
            self._next()

    # From the gateway.

    def look_for_client(self) -> None:
        """Cut the connection if the client has gone, which its socket does not tell while it is not read."""
        if self._transport is not None and has_left(self._transport, self._response):
            self.abort()

    @property
    def idle(self) -> bool:
        """No request is being received or answered."""
        return self._task is None and not self._parser.in_message and not self._queue and self._passage is None

    def unsent_bytes(self) -> int:
        """What waits for the client to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def expire(self) -> None:
        """The deadline passed."""
        if self._task is not None:
            self.cancel(timed_out())
        elif self._passage is not None:
            self.abort()
        elif self._write_paused:
            self._wait(self._service.limits.idle_timeout_seconds)  # how long it may take is for `slow_readers` to say
        elif self._lingering_bytes >= 0 or not self._parser.in_message:
            self.abort()
        else:
            self._refuse(RequestError(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time."))

    def cancel(self, verdict: RequestError) -> None:
        """End the request under way with `verdict`; a second time, cut the connection."""
        if self._task is None or self._response is None or self._response.verdict is not None:
            self.abort()
            return
        self._response.verdict = verdict
        self._task.cancel()
        self._wait(_CANCEL_SECONDS)

    def close(self) -> None:
        """Close the connection when what was written has left."""
        if self._transport is not None:
            self._transport.close()
            self._wait(self._service.limits.idle_timeout_seconds)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # A request that is passed on.

    def _pass_on(self) -> bool:
        """Pass on what has come of a request. False: other requests are under way, so it is refused."""
        parser = self._parser
        if self._passage is None:
            if self._task is not None or self._queue or parser.ready or self._transport is None:
                parser.pieces.clear()
                parser.refuse(bad_request("Send this request when those before it on its connection are answered."))
                return False
            self._service.places.busy(self)
            self._service.bodies.release(self)
            lines = self._service.cors.headers(parser.headers)
            self._passage = Passage(self, parser.passed_head(), self._service.destination(), lines)
            self.pause_reading()
            if parser.take_continue():
                self._transport.write(CONTINUE)
            self._connecting = self._loop.create_task(self._passage.connect())
        elif parser.broken:
            self.abort()
            return True
        self._wait(SILENCE_SECONDS)
        pieces, parser.pieces = parser.pieces, []
        self._passage.feed(pieces, whole=parser.passed_whole)
        return True

    def pause_reading(self) -> None:
        """As `passage.Client`."""
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
            self._service.places.unread.add(self)

    def resume_reading(self) -> None:
        """As `passage.Client`."""
        if self._transport is not None and self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
            self._service.places.unread.discard(self)

    def passed_back(self, data: bytes) -> None:
        """As `passage.Client`."""
        if self._transport is not None and not self._transport.is_closing():
            self._wait(SILENCE_SECONDS)
            self._transport.write(data)

    def passage_ended(self, error: RequestError | None) -> None:
        """As `passage.Client`."""
        self._passage = None
        if error is not None:
            self._refuse(error)
        elif self._parser.passed_whole:
            self.close()
        elif self._transport is not None:
            self._linger(self._transport)

    # Requests, one after the other.

    def _next(self) -> None:
        # While earlier answers wait for the client to read them, its next requests wait too.
        while self._queue and self._transport is not None and not self._write_paused:
            request = self._queue.popleft()
            if isinstance(request, RequestError):
                self._refuse(request)
                return
            response = Response(
                self._transport,
                self._service.error_form(request.path),
                request_id=request.request_id,
                http11=request.http11,
                close_after=not request.keep_alive or self._service.closing,
                no_body=request.method == b"HEAD",
            )
            response.cors_headers = self._service.cors.headers(request.headers)
            if not self._service.answer(request, response):
                self._response = response
                self._service.places.busy(self)
                if self._holds_body:
                    self._count_bytes()
                self._task = self._loop.create_task(self._run(request, response))
                self._wait(self._service.limits.request_timeout_seconds)
                return
            if response.close_after:
                self.close()
                return
        if self._transport is not None and not self._queue:
            if self._holds_body:
                self._count_bytes()
            if self._half_closed:
                self.close()
                return
            if self._parser.in_message:
                self._wait_for_body()
            else:
                self._wait(self._service.limits.idle_timeout_seconds)
            if not self._parser.head_done:
                self._service.places.rest(self)
            if self._reading_paused:
                self._reading_paused = False
                self._transport.resume_reading()

    async def _run(self, request: Request, response: Response) -> None:
        try:
            await self._service.serve(request, response)
        except BaseException:
            self.abort()  # the client learns it now, not at the request's deadline
            raise
        finally:
            self._task = None
            self._response = None
        if self._transport is None:
            return
        if response.close_after:
            self.close()
        else:
            self._next()

    def _refuse(self, error: RequestError) -> None:
        """Answer with `error`, then close."""
        self._service.refused(error)
        transport = self._transport
        if transport is None:
            return
        errors = self._service.error_form(self._parser.path)
        response = Response(transport, errors, request_id=new_request_id(), http11=True, close_after=True)
        response.cors_headers = self._service.cors.headers(self._parser.headers)
        response.fail(error)
        self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        """Close, but not before the client had time to read the answer."""
        self._parser.broken = True
        self._queue.clear()
        self._service.bodies.release(self)
        self._holds_body = False
        # Closing with unread bytes in the socket would reset it and take the answer away from the client.
        self._lingering_bytes = _LINGER_BYTES
        self._wait(_LINGER_SECONDS)
        if transport.can_write_eof():
            transport.write_eof()
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def _wait(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds
