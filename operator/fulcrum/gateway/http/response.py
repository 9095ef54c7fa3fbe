"""The answer to one client request: whole, streamed, or an error, each written once. Compiled (hatch_build.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from math import inf
from typing import Final, Protocol

from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload
from fulcrum.gateway.http.upstream_answer import Failure, StreamSource

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: ".encode() for status in HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON: Final = b"application/json"
_LARGE_BYTES: Final = 64 * 1024


class ErrorForm(Protocol):
    """How the API that was asked writes its errors."""

    event_line: bytes
    """Stands before the data of an event that is an error."""

    def write(self, error: RequestError, events: int | None) -> bytes:
        """The JSON of `error`; `events`: how many the stream has had that it ends, None: it ends none."""


class Response:
    """Writes to the client; `started` says whether bytes of the answer have left, after which no retry is possible."""

    __slots__ = (
        "_errors",
        "_heartbeat",
        "_no_body",
        "_opened",
        "_paused",
        "_probed",
        "_source",
        "_transport",
        "began_at",
        "close_after",
        "cors_headers",
        "deadline",
        "done",
        "ended",
        "events",
        "http11",
        "on_begin",
        "own_headers",
        "path_headers",
        "request_id",
        "slowed",
        "stall_seconds",
        "started",
        "status",
        "streaming",
        "verdict",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        errors: ErrorForm,
        *,
        request_id: bytes,
        http11: bool,
        close_after: bool,
        no_body: bool = False,
    ) -> None:
        self._transport = transport
        self._errors = errors
        self._source: StreamSource | None = None
        self._no_body = no_body
        self._paused = False
        self._probed = False
        self.request_id = request_id
        self.http11 = http11
        self.close_after = close_after
        """The connection ends with this answer."""
        self.cors_headers = b""
        """Header lines for the web page that asks."""
        self._heartbeat: asyncio.TimerHandle | None = None
        self._opened = False
        """The head of a stream was sent."""
        self.own_headers = b""
        """Header lines about what the gateway changed in the request."""
        self.path_headers = b""
        """Header lines that name the workers."""
        self.on_begin: Callable[[], None] | None = None
        """Called when a stream begins."""
        self.events = 0
        """Events of a stream that has ended, or was given up."""
        self.deadline = inf
        """Loop time by which a stream must be complete."""
        self.stall_seconds = inf
        """Longest time between two pieces of a stream; a client that is slow itself does not count."""
        self.began_at = 0.0
        """Loop time of the stream's first bytes; 0: none came yet."""
        self.slowed = False
        """The client did not keep up with the answer."""
        self.started = False
        self.done = False
        """The client has the end mark of its stream."""
        self.ended = False
        """So it has the end of the stream's body."""
        self.streaming = False
        self.status = 0
        self.verdict: RequestError | None = None
        """Why the request is being cancelled; None means that the client has gone."""

    def begin_heartbeat(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        """Until its first token, the client of a stream gets an SSE comment every `seconds`; None: it gets none.

        One that has begun goes on as it is.
        """
        if seconds is not None and self._heartbeat is None and not self.started:
            self._heartbeat = loop.call_later(seconds, self._beat, loop, seconds)

    def _beat(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._heartbeat = None
        if self.started or self._transport.is_closing():
            return
        if not self._opened:
            self._open()
        self.write_events(b": waiting\n\n")
        self.begin_heartbeat(loop, seconds)

    def _open(self) -> None:
        """Write the head of a stream."""
        self._opened = True
        if not self.http11:
            self.close_after = True  # HTTP/1.0 knows no chunks; the end of the connection ends the body
        coding = b"transfer-encoding: chunked\r\n" if self.http11 else b""
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            b"%bx-request-id: %b\r\n%b%b%b%b\r\n"
            % (
                coding,
                self.request_id,
                self.own_headers,
                self.path_headers,
                self.cors_headers,
                self._connection_line(),
            )
        )

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def send(self, status: int, content_type: bytes, body: bytes, headers: bytes = b"") -> None:
        """A whole answer."""
        self._end_heartbeat()
        self.started = True
        self.status = status
        if self._opened:
            # The status was sent with the first heartbeat: the answer is the one event of the stream, which stays open.
            self.write_events(b"%bdata: %b\n\n" % (self._errors.event_line, b" ".join(body.splitlines())))
            self.close_after = True
            return
        apart = len(body) > _LARGE_BYTES  # not copied behind its head
        head = b"".join(
            (
                _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\ncontent-type: " % status, content_type,
                b"\r\ncontent-length: ", str(len(body)).encode(), b"\r\nx-request-id: ", self.request_id, b"\r\n",
                self.own_headers, self.path_headers, headers, self.cors_headers, self._connection_line(), b"\r\n",
                b"" if apart or self._no_body else body,
            )
        )  # fmt: skip
        self._write(head)
        if apart and not self._no_body:
            self._write(body)

    def fail(self, error: RequestError) -> None:
        """An error: as an answer or, when a stream is under way, as its last event; the stream stays unfinished."""
        self._end_heartbeat()
        if not self.started:
            self.send(error.status, _JSON, self._errors.write(error, 0 if self._opened else None), error.headers())
        elif self.streaming:
            self.stream_end()
            if not self.done:
                written = self._errors.write(error, self.events)
                self.write_events(b"%bdata: %b\n\n" % (self._errors.event_line, written))
            # Without an end mark there is no last chunk either: the client must not take this for the answer's end.
            self.close_after = True

    def probe(self) -> None:
        """Send once what a client ignores, and what one that left resets: an interim answer, in a stream a comment."""
        if self._probed or self.done or (self.started and not self.streaming):
            return
        if self.streaming or self._opened:
            self._probed = True
            self.write_events(b":\n\n")
        elif self.http11:
            self._probed = True
            self._write(CONTINUE)

    def _write(self, data: bytes) -> None:
        """Write unless the client is gone already: a closed transport refuses, and the loop says so to us next."""
        if not self._transport.is_closing():
            self._transport.write(data)

    # A stream.

    def stream_begin(self, source: StreamSource) -> None:
        """It comes from `source`, whose first bytes follow."""
        self.started = True
        self.streaming = True
        self.status = 200
        self.began_at = source.first_byte_at
        self.stream_goes_on(source)
        self._end_heartbeat()
        if not self._opened:
            self._open()

    def stream_goes_on(self, source: StreamSource) -> None:
        """The stream, which may have begun before, comes from `source` now."""
        self._source = source
        source.deadline = self.deadline
        source.stall_seconds = self.stall_seconds
        if self.on_begin is not None:
            self.on_begin()
        if self._paused:
            source.pause()

    def write_chunks(self, chunks: bytes) -> None:
        """Whole chunks of the stream, framing included."""
        if not self._transport.is_closing():  # as `_write`, without the call: this runs for each piece of a stream
            self._transport.write(chunks if self.http11 else payload(chunks))

    def stream_fails(self, failure: Failure, message: str) -> None:
        """What comes is not what was asked for."""
        if self._source is not None:
            self._source.fail(failure, message)

    def write_events(self, events: bytes) -> None:
        """Events of the gateway's own making."""
        self.write_chunks(chunk(events))

    def write_end(self, events: bytes) -> None:
        """The same, and the stream ends with them."""
        self.done = self.ended = True
        self.write_chunks(chunk(events) + LAST_CHUNK if events else LAST_CHUNK)

    def events_so_far(self) -> int:
        """Events of the stream that its source has sent."""
        return self.events if self._source is None else self._source.events

    def stream_end(self) -> None:
        """The stream is complete, or given up."""
        if self._source is not None:
            self.events = self._source.events
        self._source = None
        if self.done and not self.ended:
            self.ended = True
            self.write_chunks(LAST_CHUNK)

    # Back-pressure, from the client's connection.

    def pause(self) -> None:
        self._paused = True
        self.slowed = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()

    def _connection_line(self) -> bytes:
        if self.close_after:
            return b"connection: close\r\n"
        return b"" if self.http11 else b"connection: keep-alive\r\n"
