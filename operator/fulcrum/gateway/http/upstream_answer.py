"""What comes back from an engine: an answer, a stream, or a failure."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Protocol

import msgspec


class Failure(StrEnum):
    """How a leg failed without an answer that can be passed on (metric label `outcome`)."""

    CONNECT = "connect"
    STALE = "stale"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    ERROR_STATUS = "error_status"
    REFUSED = "refused"
    """The worker asks for another token than this gateway has."""
    STALL = "stall"
    TRUNCATED = "truncated"
    """A stream ended without its end mark."""
    DIVERGED = "diverged"
    """Another worker did not go on with a stream as the first one did."""


class Excuse(Enum):
    """When a request may wait for its first byte because its worker computes other things."""

    NEVER = "never"
    IN_TURN = "in turn"
    """As long as no later one was answered: engines take requests in the order of their arrival."""
    ALWAYS = "always"


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
    first_byte_at: float = 0.0
    """Loop time of the first body bytes, seconds."""
    head: bytes = b""
    """Its status line and headers."""


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
    stall_seconds: float
    """Longest time between two pieces of it in which its worker computes nothing either."""

    @property
    def events(self) -> int:
        """Events so far."""

    @property
    def head(self) -> bytes:
        """Status line and headers of the answer."""


class StreamSink(Protocol):
    """Takes a streamed answer."""

    @property
    def done(self) -> bool:
        """The client has the whole answer, with its end mark."""

    def holds(self, first_chunks: bytes) -> bool:
        """Whether nothing of the answer has come with this: it keeps such chunks until `stream_begin`."""

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """Whether the stream begins with an error of the engine's own: another engine is tried then."""

    def stream_begin(self, source: StreamSource) -> None:
        """First bytes follow; `source` can be paused and resumed."""

    def stream_bytes(self, chunks: bytes) -> None:
        """Whole chunks, framing included."""

    def stream_last(self, chunks: bytes) -> None:
        """The same, and the body ends with them."""
