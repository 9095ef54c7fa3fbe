"""An engine's stream of named events on its way to a client. Compiled (hatch_build.py).

It cannot be resumed: neither API says which tokens an event is. Before the first token another worker can be asked.
"""

from __future__ import annotations

from fulcrum.gateway.api_formats.named_events import fails_at_once, is_preface, read_named, says_more
from fulcrum.gateway.dispatch.client_stream import ClientStream
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Failure, StreamSource


class NamedStream(ClientStream):
    """Takes the stream of the worker (`StreamSink`)."""

    __slots__ = ("_path", "_preface")

    def __init__(self, response: Response, path: str) -> None:
        super().__init__(response, None, hides_usage=False)
        self._path = path
        self._preface = b""
        """Events of this attempt's worker that came before its first token."""

    def holds(self, first_chunks: bytes) -> bool:
        """As `StreamSink`: a worker that is lost before its first token has lost nothing."""
        events = payload(first_chunks)
        if b"event: response.created\n" in events:
            self._preface = b""
        if not is_preface(events):
            return False
        self._preface += first_chunks
        return True

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return fails_at_once(payload(first_chunks))

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`."""
        self.response.stream_begin(source)
        preface, self._preface = self._preface, b""
        if preface:
            self.stream_bytes(preface)

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        if not says_more(self._path, chunks):
            self.response.write_chunks(chunks)
            return
        shown: list[bytes] = []
        failed = False
        for event in payload(chunks).split(b"\n\n"):
            if not event:
                continue
            read = read_named(event)
            if read.usage is not None:
                self.usage = read.usage
            if read.fails:
                failed = True
                break
            if read.last:
                self.response.done = True
            shown.append(chunk(read.shown + b"\n\n"))
        self.response.write_chunks(b"".join(shown))
        if failed:
            self.response.stream_fails(Failure.ERROR_STATUS, "the engine failed in the middle of the stream")

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        body = payload(chunks)
        if body:
            self.stream_bytes(chunk(body))
        if not self.response.done:
            self.response.stream_fails(Failure.TRUNCATED, "the stream has no end")
        else:
            self.response.ended = True
            self.response.write_chunks(LAST_CHUNK)
