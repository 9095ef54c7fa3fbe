"""Chunked transfer coding, passed on without being taken apart (RFC 9112, section 7.1)."""

from __future__ import annotations

from typing import Final

_MAX_SIZE_LINE_BYTES: Final = 256
_MAX_CHUNK_BYTES: Final = 64 * 1024 * 1024
_MAX_TRAILER_BYTES: Final = 8192
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
LAST_CHUNK: Final = b"0\r\n\r\n"
"""Ends a chunked body."""
EVENT_END: Final = b"\n\n\r\n"
"""Ends a chunk whose last bytes end an SSE event. In the chunks of a feed that is not `cut` it stands nowhere else."""
_SIZE_LINES: Final = {len(b"%x" % size) + size: b"%x\r\n" % size for size in range(2, 2048)}
"""Size line of a chunk that ends with `EVENT_END`, by its bytes before `EVENT_END`. Engines write each event of a few
tokens as one chunk; longer chunks are taken apart in `_scan`."""


class FramingError(Exception):
    """The peer does not frame its body as it said it would."""


class ChunkedBody:
    """Follows the chunks of one body.

    `feed` hands back whole chunks with their framing, so that what was passed on always ends at a chunk's end: an error
    event can be appended when the peer dies. Chunk extensions and trailers end here.
    """

    __slots__ = ("_held", "_held_bytes", "_needed_bytes", "_plain", "chunks", "cut", "ended", "surplus")

    def __init__(self) -> None:
        self.chunks = 0
        """Chunks so far, the last (empty) one not counted."""
        self.cut = False
        """A chunk of the last feed did not end where an SSE event ends."""
        self.ended = False
        self.surplus = False
        """Bytes came after the end."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        self._plain = True
        """No chunk of the last feed had an extension, and there were no trailers."""

    def feed(self, piece: bytes) -> bytes:
        """Whole chunks, framing included, that `piece` completes; empty when it completes none."""
        if self._held:
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes < self._needed_bytes:
                return b""
            piece = b"".join(self._held)
            self._held.clear()
        if self.ended:
            self.surplus = self.surplus or bool(piece)
            return b""
        self.cut = False
        self._plain = True
        passed_bytes, ended = self._scan(piece)
        self.ended = ended
        if passed_bytes == len(piece):
            return piece if self._plain else _plainly(piece, ended=ended)
        if ended:
            self.surplus = True
        else:
            rest = piece[passed_bytes:]
            self._held.append(rest)
            self._held_bytes = len(rest)
        passed = piece[:passed_bytes]
        return passed if self._plain else _plainly(passed, ended=ended)

    def _scan(self, piece: bytes) -> tuple[int, bool]:
        """Bytes of `piece` that are whole chunks, and whether they end the body; notes the size of a partial one."""
        position = self._scan_events(piece)
        length = len(piece)
        self._needed_bytes = 0
        while position < length:
            line_end = piece.find(b"\r\n", position, position + _MAX_SIZE_LINE_BYTES)
            if line_end < 0:
                if length - position >= _MAX_SIZE_LINE_BYTES:
                    raise FramingError("chunk size line too long")
                break
            line = piece[position:line_end]
            size = _size(line)
            if size == 0:
                # Without trailers the empty line follows at once; with them it ends the last trailer's line too.
                end = piece.find(b"\r\n\r\n", line_end)
                if end >= 0:
                    if end != line_end or not _HEX.issuperset(line):
                        self._plain = False
                    return end + 4, True
                if length - line_end > _MAX_TRAILER_BYTES:
                    raise FramingError("trailers too long")
                break
            end = line_end + 2 + size
            if end + 2 > length:
                self._needed_bytes = end + 2 - position
                break
            if piece[end : end + 2] != b"\r\n":
                raise FramingError("chunk does not end with CRLF")
            # From the size line's own LF: with a payload that begins with LF it makes such an end, too.
            if piece.find(EVENT_END, line_end + 1, end + 2) != end - 2:
                self.cut = True
            if not _HEX.issuperset(line):
                self._plain = False
            self.chunks += 1
            position = end + 2
        return position, False

    def _scan_events(self, piece: bytes) -> int:
        """Bytes of `piece` up to its first chunk that is not as engines write them: a plain size line, whole events."""
        position = 0
        events = piece.split(EVENT_END)
        del events[-1]  # what follows the last end
        for event in events:
            line = _SIZE_LINES.get(len(event))
            if line is None or event[: len(line)] != line:
                break
            position += len(event) + len(EVENT_END)
            self.chunks += 1
        return position


def payload(chunks: bytes) -> bytes:
    """What whole chunks carry, without their framing."""
    pieces = _bodies(chunks)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def chunk(body: bytes) -> bytes:
    """`body` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def without_end(chunks: bytes) -> bytes:
    """What whole chunks carry, as one chunk, and the last (empty) one left out."""
    body = payload(chunks)
    return chunk(body) if body else b""


def _plainly(chunks: bytes, *, ended: bool) -> bytes:
    """The same chunks without extensions and trailers."""
    plain = b"".join([chunk(body) for body in _bodies(chunks)])
    return plain + LAST_CHUNK if ended else plain


def _bodies(chunks: bytes) -> list[bytes]:
    bodies = []
    position = 0
    while position < len(chunks):
        line_end = chunks.index(b"\r\n", position)
        size = _size(chunks[position:line_end])
        if size == 0:
            break
        bodies.append(chunks[line_end + 2 : line_end + 2 + size])
        position = line_end + 2 + size + 2
    return bodies


def _size(line: bytes) -> int:
    # int() alone would also take signs, underscores and blanks.
    if not _HEX.issuperset(line):
        line = line.partition(b";")[0].rstrip(b" \t")
    if not line or not _HEX.issuperset(line):
        raise FramingError("chunk size is not a hexadecimal number")
    size = int(line, 16)
    if size > _MAX_CHUNK_BYTES:
        raise FramingError("chunk too large")
    return size
