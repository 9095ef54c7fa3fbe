"""Events of a stream (SSE) put together where a proxy has split or joined them. Compiled (hatch_build.py)."""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.http.framing import LAST_CHUNK, FramingError, chunk, payload

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
