"""Reads the pieces of a stream in which it begins or may end. Compiled (hatch_build.py).

A stream passes through unread while it goes on. Its events are read where something depends on them: at its beginning
(errors), at its end (usage, errors), and when another worker goes on with it (token ids).
"""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.api_formats.events import ABORT, ERROR, fails, read_or_none
from fulcrum.gateway.api_formats.inference_request import Usage
from fulcrum.gateway.http.framing import EVENT_END, LAST_CHUNK, chunk, payload

_USAGE: Final = b'"usage"'
_END_BYTES: Final = 512
"""Bytes at the end of a stream's piece in which, and in the event that reaches into them, an error, an aborted choice,
or usage is searched: only usage and the end mark follow these, about 300 bytes."""


def begins_with_failure(chunks: bytes) -> bool:
    """Whether a stream begins with an error of the engine's own making, which another may not make, or is given up."""
    return (ERROR in chunks[:64] or ABORT in chunks[:_END_BYTES]) and fails(payload(chunks).partition(b"\n")[0])


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
    finds_failure = ERROR in tail or ABORT in tail
    if not finds_failure and _USAGE not in tail:
        return EndPiece(chunks)
    usage: Usage | None = None
    shown: list[bytes] = []
    failed = hidden = False
    for event in payload(tail).split(b"\n\n"):
        if finds_failure and fails(event):
            failed = True
            break
        read = read_or_none(event) if _USAGE in event else None
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
