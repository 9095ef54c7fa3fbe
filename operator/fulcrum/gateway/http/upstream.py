"""One connection to an engine: a request out, its answer buffered or passed on as it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

from fulcrum.gateway.http.framing import ChunkedBody, FramingError, payload
from fulcrum.gateway.http.kept_body import KeptBody
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.response_head import Head, HeadReader
from fulcrum.gateway.http.upstream_answer import Answer, Excuse, Failure, StreamSink, UpstreamError
from fulcrum.gateway.http.whole_events import WholeEvents

# States of a connection; plain numbers, because they are compared several times per request.
_IDLE: Final = 0
_HEAD: Final = 1
_LENGTH: Final = 2
_CHUNKED: Final = 3
_UNTIL_CLOSE: Final = 4
_CLOSED: Final = 5


class UpstreamConnection(asyncio.Protocol):
    """Keep-alive connection; one exchange at a time."""

    __slots__ = (
        "_body", "_chunks", "_events", "_head", "_head_reader", "_keep_alive", "_loop", "_lost", "_moved_at",
        "_moved_chunks", "_paused", "_released", "_reused", "_sink", "_state", "_still", "_streaming", "_transport",
        "_unread_since", "_waiter", "began_at", "deadline", "excuse", "first_byte_at", "idle_since",
        "silence_seconds", "stall_seconds",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        released: Callable[[UpstreamConnection], None],
        lost: Callable[[UpstreamConnection], None],
        still: Callable[[UpstreamConnection, float, float, float], bool],
        response_budget: ResponseBudget,
    ) -> None:
        self._loop = loop
        self._body = KeptBody(response_budget, self)
        self._released = released
        self._lost = lost
        self._still = still
        self._transport: asyncio.Transport | None = None
        self._state = _IDLE
        self._waiter: asyncio.Future[Answer] | None = None
        self._sink: StreamSink | None = None
        self._head_reader = HeadReader()
        self._head: Head | None = None
        """Of the answer that is coming."""
        self._reused = False
        self._streaming = False
        self._keep_alive = False
        self._chunks = ChunkedBody()
        self._events: WholeEvents | None = None
        """Puts events together; None as long as each chunk is whole events, as engines write them."""
        self._unread_since = 0.0
        """Loop time since when its answer waits for room; 0: it does not."""
        self._paused = False
        self._moved_chunks = 0
        self._moved_at = 0.0
        self.began_at = 0.0
        self.first_byte_at = 0.0
        self.deadline = math.inf
        self.silence_seconds = math.inf
        """Longest time until the first piece of a stream, or a whole answer, in which `still` is true."""
        self.stall_seconds = math.inf
        """The same between two pieces of a stream."""
        self.excuse = Excuse.NEVER
        self.idle_since = 0.0

    def exchange(
        self,
        request: bytes,
        sink: StreamSink | None,
        deadline: float,
        silence_seconds: float = math.inf,
        excuse: Excuse = Excuse.NEVER,
    ) -> asyncio.Future[Answer]:
        """Send a request; the future holds its whole answer, or an UpstreamError.

        An event stream is handed to `sink` as it arrives; any other answer is kept. `abort` gives up waiting.
        """
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        transport = self._transport
        if transport is None or self._state != _IDLE:
            waiter.set_exception(UpstreamError(Failure.STALE, "connection closed"))
            return waiter
        self._waiter = waiter
        self._sink = sink
        self._state = _HEAD
        self.began_at = self._moved_at = self._loop.time()
        self.first_byte_at = 0.0
        self.deadline = deadline
        self.silence_seconds = silence_seconds
        self.excuse = excuse
        self.stall_seconds = math.inf
        self._paused = False
        self._moved_chunks = -1
        transport.write(request)
        return waiter

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        self._paused = True
        if self._transport is not None and self._state != _CLOSED:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        self._moved_chunks = -1
        if self._transport is not None and self._state != _CLOSED:
            self._transport.resume_reading()

    @property
    def events(self) -> int:
        """Events of the stream so far."""
        return self._chunks.chunks if self._events is None else self._events.events

    @property
    def head(self) -> bytes:
        """Status line and headers of the answer that comes, or came last."""
        return b"" if self._head is None else self._head.text

    @property
    def answered(self) -> bool:
        """A good answer to its last request has begun, if it is a stream, or is complete."""
        done = self._state == _IDLE and self._head is not None and self._head.status == 200
        return done or self.first_byte_at > 0

    def abort(self) -> None:
        """Close at once; the engine aborts what it was doing for us."""
        self._state = _CLOSED
        self._sink = None
        self._release_budget()
        if self._transport is not None:
            self._transport.abort()

    def budget_granted(self) -> None:
        """There is room for its answer: read on."""
        # It was not the engine that took so long.
        self.deadline += self._loop.time() - self._unread_since
        self._moved_at = self._loop.time()
        self._unread_since = 0.0
        if self._transport is not None:
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """Fail what is past its deadline, and what stands still (loop time). To be called now and then."""
        if self._unread_since:
            return
        if self.deadline < now:
            self.fail(Failure.TIMEOUT, "no answer in time")
        elif self._waiter is not None and not self._paused:
            limit_seconds = self.silence_seconds
            if self.first_byte_at:
                limit_seconds = self.stall_seconds
                if self._chunks.chunks != self._moved_chunks:
                    self._moved_chunks = self._chunks.chunks
                    self._moved_at = now
            if now - self._moved_at > limit_seconds and self._still(self, self._moved_at, limit_seconds, now):
                self.fail(Failure.STALL, "nothing comes")

    def fail(self, failure: Failure, message: str) -> None:
        """Give up: what came is not what was asked for."""
        waiter, self._waiter = self._waiter, None
        self.abort()
        self.deadline = math.inf
        if waiter is not None and not waiter.done():
            waiter.set_exception(UpstreamError(failure, message))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            if self._state == _CHUNKED:
                self._on_chunks(data)
            elif self._state == _HEAD:
                read = self._head_reader.feed(data)
                if read is not None:
                    self._begin(read[0], read[1])
            elif self._state == _LENGTH:
                self._on_length(data)
            elif self._state == _UNTIL_CLOSE:
                self._on_until_close(data)
            elif self._state == _IDLE:
                self.abort()  # bytes without a request
        except (FramingError, ValueError) as error:
            self.fail(Failure.PROTOCOL, f"bad answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        state = self._state
        self._state = _CLOSED
        self._transport = None
        self._release_budget()
        self._lost(self)
        if state == _UNTIL_CLOSE and exc is None:
            if self._streaming and self._sink is not None and self._events is not None:
                self._pass_on(self._sink, self._events.feed_bytes(b"", last=True), last=True)
            self._resolve()
        elif self._waiter is not None:
            unanswered = state == _HEAD and not self._head_reader.held
            failure = Failure.STALE if unanswered and self._reused else Failure.RESET
            self.fail(failure, "connection lost")

    # Answer, in the order of its bytes.

    def _begin(self, head: Head, rest: bytes) -> None:
        """The head has come; `rest` is what came behind it."""
        self._head = head
        self._keep_alive = head.keep_alive
        event_stream = head.content_type.startswith(b"text/event-stream")
        self._streaming = self._sink is not None and head.status == 200 and event_stream and head.length_bytes is None
        self._events = None
        bodiless = head.status in (204, 304)
        if head.chunked and not bodiless:
            self._state = _CHUNKED
            self._chunks = ChunkedBody()
        elif head.length_bytes is not None or bodiless:
            self._state = _LENGTH
            if bodiless or not head.length_bytes:
                self._body.begin(0)
                self._finish(surplus=bool(rest))
                return
        else:
            self._state = _UNTIL_CLOSE
            self._keep_alive = False
            self._events = WholeEvents()
        if not self._streaming and not self._body.begin(head.length_bytes) and self._transport is not None:
            self._unread_since = self._loop.time()
            self._transport.pause_reading()
        if rest:
            self.data_received(rest)

    def _on_length(self, data: bytes) -> None:
        left_bytes = self._body.add(data)
        if left_bytes <= 0:
            self._finish(surplus=left_bytes < 0)

    def _on_chunks(self, data: bytes) -> None:
        body = self._chunks
        before = body.chunks
        chunks = body.feed(data)
        if not chunks:
            return
        if self._streaming:
            if self._events is not None or body.cut:
                if self._events is None:
                    self._events = WholeEvents(before)
                chunks = self._events.feed(chunks, last=body.ended)
            if self._sink is not None and chunks:
                self._pass_on(self._sink, chunks, last=body.ended)
        else:
            self._keep(payload(chunks))
        if self._chunks.ended and self._state == _CHUNKED:
            self._finish(surplus=self._chunks.surplus)

    def _on_until_close(self, data: bytes) -> None:
        if self._streaming:
            if self._sink is not None and self._events is not None:
                self._chunks.chunks += 1
                if chunks := self._events.feed_bytes(data):
                    self._pass_on(self._sink, chunks)
            return
        self._keep(data)

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of an answer that did not say its length."""
        if self._body.add(piece) < 0:
            raise FramingError("answer too large")

    def _release_budget(self) -> None:
        self._unread_since = 0.0
        self._body.release()

    def _pass_on(self, sink: StreamSink, chunks: bytes, *, last: bool = False) -> None:
        if self.first_byte_at == 0.0:
            if sink.fails_at_once(chunks):
                self.fail(Failure.ERROR_STATUS, "the engine failed before the first token")
                return
            if sink.holds(chunks):
                if last:
                    self.fail(Failure.TRUNCATED, "the stream ended before its first token")
                return
            self.first_byte_at = self._loop.time()
            sink.stream_begin(self)
        if last:
            sink.stream_last(chunks)
        else:
            sink.stream_bytes(chunks)

    def _finish(self, *, surplus: bool) -> None:
        transport = self._transport
        reusable = self._keep_alive and not surplus and transport is not None
        self._state = _IDLE if reusable else _CLOSED
        may_be_paused = (
            self._streaming or self._body.holds_budget
        )  # by the client in its last bytes, or for want of room
        self._resolve()
        if transport is not None and reusable:
            if may_be_paused:
                transport.resume_reading()
            self._reused = True
            self.idle_since = self._loop.time()
            self._released(self)
        elif transport is not None:
            transport.close()

    def _resolve(self) -> None:
        waiter, self._waiter = self._waiter, None
        self._sink = None
        self.deadline = math.inf
        if waiter is None or waiter.done() or self._head is None:
            self._release_budget()
            return
        waiter.set_result(
            Answer(
                status=self._head.status,
                content_type=self._head.content_type,
                body=b"" if self._streaming else self._body.take(),
                streamed=self._streaming,
                first_byte_at=self.first_byte_at,
                head=self._head.text,
            )
        )
        if self._body.holds_budget:
            # After the waiting task has passed the answer on: what the client does not take at once needs the room.
            self._loop.call_soon(self._release_budget)
