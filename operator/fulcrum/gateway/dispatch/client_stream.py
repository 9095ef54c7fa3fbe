"""An engine's stream on its way to a client: passed on as it comes, logged, and read where it may end.

Compiled (hatch_build.py).
"""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.api_formats.events import DONE_LINE
from fulcrum.gateway.api_formats.inference_request import Usage
from fulcrum.gateway.dispatch.stream_ends import begins_with_failure, read_end
from fulcrum.gateway.dispatch.stream_log import StreamLog
from fulcrum.gateway.http.framing import without_end
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Failure, StreamSource

_EVENT: Final = b"\ndata: "
_GOES_ON: Final = b'"finish_reason":null'
_LAST_EVENT_BYTES: Final = 512
"""Bytes at a piece's end in which its last event is searched. A longer event carries tokens alone: an error, a finish
reason and usage come after them."""


class ClientStream:
    """Takes the stream of the first worker (`StreamSink`)."""

    __slots__ = ("hides_usage", "response", "stream_log", "usage")

    def __init__(self, response: Response, stream_log: StreamLog | None, *, hides_usage: bool) -> None:
        self.response = response
        self.stream_log = stream_log
        """Keeps what is needed to go on with the stream on another worker."""
        self.hides_usage = hides_usage
        """The client did not ask for its token counts."""
        self.usage: Usage | None = None
        """What the engine said of the stream at its end."""

    @property
    def done(self) -> bool:
        """As `StreamSink`."""
        return self.response.done

    def holds(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return False

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return begins_with_failure(first_chunks)

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`."""
        self.response.stream_begin(source)

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        last = chunks.rfind(_EVENT, -_LAST_EVENT_BYTES)
        if last < 0 or chunks.find(_GOES_ON, last) < 0:
            self._end_piece(chunks)
        else:
            self._write(chunks)

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        # From its end: searching all of a large piece takes longer than passing it on.
        if self.response.done or chunks.rfind(DONE_LINE) >= 0:
            self.response.ended = True
            self.stream_bytes(chunks)
        elif not self._end_piece(without_end(chunks)):
            self.response.stream_fails(Failure.TRUNCATED, "the stream has no end")

    def _end_piece(self, chunks: bytes) -> bool:
        """Write a piece that may end the stream; True: the engine fails in it, and is not to be heard on."""
        piece = read_end(chunks, hides_usage=self.hides_usage)
        if piece.usage is not None:
            self.usage = piece.usage
        if not piece.failed and chunks.rfind(DONE_LINE, -_LAST_EVENT_BYTES) >= 0:
            self.response.done = True
        if piece.shown:
            self._write(piece.shown)
        if piece.failed:
            self.response.stream_fails(Failure.ERROR_STATUS, "the engine failed in the middle of the stream")
        return piece.failed

    def _write(self, chunks: bytes) -> None:
        stream_log = self.stream_log
        if stream_log is not None:
            stream_log.room -= len(chunks)
            if stream_log.room < 0:
                chunks = stream_log.make_room(chunks)
            stream_log.pieces.append(chunks)
        self.response.write_chunks(chunks)
