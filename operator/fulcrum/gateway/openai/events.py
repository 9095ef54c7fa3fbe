"""The reader of SSE streams: events put together, told apart, and what is in them. Compiled (hatch_build.py).

A stream passes through unread while it goes on. Its events are read where something depends on them: at its end
(usage, errors), and when another worker goes on with it (token ids).
"""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.gateway.http.framing import EVENT_END, LAST_CHUNK, FramingError, chunk, payload
from fulcrum.gateway.openai.inference_request import Usage
from fulcrum.gateway.openai.stream_event import Event, decoder

DONE: Final = b"data: [DONE]"
_JSON: Final = b"data: {"
_DATA_BYTES: Final = len(b"data: ")
_ERROR: Final = b'data: {"error"'
_ABORT: Final = b'"finish_reason":"abort"'
_USAGE: Final = b'"usage"'
_END_BYTES: Final = 512
"""Bytes at the end of a stream's piece in which, and in the event that reaches into them, an error, an aborted choice,
or usage is searched: only usage and the end mark follow these, about 300 bytes."""
_SERVER_ERRORS: Final = 500
_MAX_EVENT_BYTES: Final = 64 * 1024 * 1024


class WholeEvents:
    """Hands on chunks that hold whole events, where a proxy has split or joined what the engine wrote.

    Lines end with LF from here on.
    """

    __slots__ = ("_held", "events")

    def __init__(self, events: int = 0) -> None:
        """`events`: how many have passed before."""
        self._held = bytearray()
        self.events = events
        """Events that were handed on."""

    def feed(self, chunks: bytes, *, last: bool = False) -> bytes:
        """The events that `chunks` complete, each a chunk of its own. At the end of a stream also what is incomplete.

        Raises FramingError for an event without an end.
        """
        return self.feed_bytes(payload(chunks), last=last)

    def feed_bytes(self, piece: bytes, *, last: bool = False) -> bytes:
        """The same for a body without framing."""
        held = self._held
        before = max(len(held) - 3, 0)
        held += piece
        end = _last_end(held, before)
        if last:
            end = len(held)
        elif end == 0:
            if len(held) > _MAX_EVENT_BYTES:
                raise FramingError("event too large")
            return b""
        whole = bytes(held[:end]).replace(b"\r\n", b"\n")
        del held[:end]
        events = [event for event in whole.split(b"\n\n") if event]
        # What has no end mark is passed on as it came: to add one would make an event of half of one.
        unfinished = last and not whole.endswith(b"\n\n") and bool(events)
        out = [chunk(event + b"\n\n") for event in (events[:-1] if unfinished else events)]
        if unfinished:
            out.append(chunk(events[-1]))
        self.events += len(events)
        return b"".join(out) + LAST_CHUNK if last else b"".join(out)


def _last_end(held: bytearray, before: int) -> int:
    """Bytes up to the end of the last event; 0: none ends. `before` is where the search may begin."""
    line_feeds = held.rfind(b"\n\n", before)
    pairs = held.rfind(b"\n\r\n", before)
    return max(line_feeds + 2 if line_feeds >= 0 else 0, pairs + 3 if pairs >= 0 else 0)


def events_of(chunks: bytes) -> list[bytes]:
    """The events that end in `chunks`, each without the empty line that ends it."""
    return payload(chunks).split(b"\n\n")[:-1]


def read_event(event: bytes) -> Event | None:
    """What an event says; None for a comment or an end mark. Raises msgspec.DecodeError."""
    if not event.startswith(_JSON):
        return None
    try:
        return decoder.decode(event[_DATA_BYTES:])
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


def begins_with_failure(chunks: bytes) -> bool:
    """Whether a stream begins with an error of the engine's own making, which another may not make, or is given up."""
    return (_ERROR in chunks[:64] or _ABORT in chunks[:_END_BYTES]) and _fails(payload(chunks).partition(b"\n")[0])


def _fails(event: bytes) -> bool:
    if event.startswith(_ERROR):
        read = _read_or_none(event)
        code = read.error.get("code") if read is not None and isinstance(read.error, dict) else None
        return isinstance(code, int) and code >= _SERVER_ERRORS
    return _ABORT in event


def _read_or_none(event: bytes) -> Event | None:
    try:
        return read_event(event)
    except msgspec.DecodeError:
        return None


class EndPiece:
    """A piece from the end of a stream."""

    __slots__ = ("failed", "shown", "usage")

    def __init__(self, shown: bytes, usage: Usage | None = None, *, failed: bool = False) -> None:
        self.shown = shown
        """Chunks that the client may see."""
        self.usage = usage
        self.failed = failed
        """The engine fails in it: `shown` is what comes before."""


def read_end(chunks: bytes, *, hides_usage: bool) -> EndPiece:
    """Read a piece that may end a stream.

    `hides_usage`: the client did not ask for it. An error event or an aborted choice ends the piece: such an event is
    the last one before the end mark, so that it is in the last piece when it did not begin one.
    """
    # Reading all of a large piece would take most of the time of a stream that comes at once.
    end = chunks.rfind(EVENT_END, 0, -_END_BYTES)
    begin = end + len(EVENT_END) if end >= 0 else 0
    tail = chunks[begin:]
    finds_failure = _ERROR in tail or _ABORT in tail
    if not finds_failure and _USAGE not in tail:
        return EndPiece(chunks)
    usage: Usage | None = None
    shown: list[bytes] = []
    failed = hidden = False
    for event in payload(tail).split(b"\n\n"):
        if finds_failure and _fails(event):
            failed = True
            break
        read = _read_or_none(event) if _USAGE in event else None
        if read is not None and read.usage is not None:
            usage = read.usage
            if hides_usage and not read.choices:
                hidden = True
                continue
        shown.append(event)
    if failed:
        rest = chunk(b"\n\n".join(shown) + b"\n\n") if shown else b""
    elif hidden:
        body = b"\n\n".join(shown)
        rest = (chunk(body) if body else b"") + (LAST_CHUNK if chunks.endswith(LAST_CHUNK) else b"")
    else:
        return EndPiece(chunks, usage)
    return EndPiece(chunks[:begin] + rest, usage, failed=failed)
