"""What comes back from an engine: an answer, a stream, or a failure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

import msgspec

from fulcrum.gateway.framing import payload

_STREAM_ERROR_PREFIX: Final = b'data: {"error"'


class Failure(StrEnum):
    """How a leg failed without an answer that can be passed on (metric label `outcome`)."""

    CONNECT = "connect"
    STALE = "stale"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    ERROR_STATUS = "error_status"
    STALL = "stall"
    TRUNCATED = "truncated"
    """A stream ended without its end mark."""
    DIVERGED = "diverged"
    """Another worker did not go on with a stream as the first one did."""


class UpstreamError(Exception):
    """An engine gave no usable answer; another worker may."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer of an engine."""

    status: int
    content_type: bytes
    body: bytes
    """Empty when it was streamed."""
    streamed: bool = False
    events: int = 0
    """Chunks of the stream; an engine writes one per SSE event."""
    first_byte_at: float = 0.0
    """Loop time of the first body bytes, seconds."""


class Head(msgspec.Struct, frozen=True):
    """What a response head says about its body."""

    status: int
    length_bytes: int | None
    chunked: bool
    keep_alive: bool
    content_type: bytes


def read_head(head: bytes) -> Head:
    """Read a head (without its empty line). Raises ValueError.

    Only what an HTTP server of ours needs to say, found without taking all headers apart.
    """
    if not head.startswith(b"HTTP/1.") or head[8:9] != b" ":
        raise ValueError("not an HTTP/1 answer")
    lower = head.lower()
    length = _header(lower, b"\r\ncontent-length:")
    if length is not None and not length.isdigit():
        raise ValueError("content-length is not a number")
    http11 = head[7:8] == b"1"
    return Head(
        int(head[9:12]),
        None if length is None else int(length),
        length is None and (_header(lower, b"\r\ntransfer-encoding:") or b"").endswith(b"chunked"),
        b"\r\nconnection: close" not in lower if http11 else b"\r\nconnection: keep-alive" in lower,
        _header(lower, b"\r\ncontent-type:") or b"application/json",
    )


def _header(head: bytes, name: bytes) -> bytes | None:
    at = head.find(name)
    if at < 0:
        return None
    start = at + len(name)
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()


class StreamSource(Protocol):
    """Where a stream comes from."""

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""

    def resume(self) -> None:
        """Read on."""

    def fail(self, failure: Failure, message: str) -> None:
        """Give up: what came is not what was asked for."""

    first_byte_at: float
    """Loop time of the first body bytes, seconds."""
    deadline: float
    """Loop time by which it must be complete."""
    patience_seconds: float
    """Longest time between two pieces of it."""


class StreamSink(Protocol):
    """Takes a streamed answer."""

    def stream_begin(self, source: StreamSource) -> None:
        """First bytes follow; `source` can be paused and resumed."""

    def stream_bytes(self, chunks: bytes) -> None:
        """Whole chunks, framing included."""

    def stream_last(self, chunks: bytes) -> None:
        """The same, and the body ends with them."""


class _ErrorDetail(msgspec.Struct):
    code: int | None = None


class _ErrorEvent(msgspec.Struct):
    error: _ErrorDetail


def failed_itself(chunks: bytes) -> bool:
    """Whether a piece of a stream begins with an error of the engine's own making, which another may not make."""
    if _STREAM_ERROR_PREFIX not in chunks[:64]:
        return False
    line = payload(chunks).partition(b"\n")[0]
    try:
        error = msgspec.json.decode(line.removeprefix(b"data: "), type=_ErrorEvent).error
    except msgspec.DecodeError:
        return False
    return error.code is not None and error.code >= 500
