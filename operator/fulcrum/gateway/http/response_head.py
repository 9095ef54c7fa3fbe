"""The head of an engine's answer. Compiled (hatch_build.py)."""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.http.framing import FramingError

_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_INTERIM_ANSWERS: Final = 8
_OK: Final = 200
_SWITCHING_PROTOCOLS: Final = 101


class Head:
    """What a response head says about its body."""

    __slots__ = ("chunked", "content_type", "keep_alive", "length_bytes", "status", "text")

    def __init__(
        self,
        status: int,
        length_bytes: int | None,
        *,
        chunked: bool,
        keep_alive: bool,
        content_type: bytes,
        text: bytes,
    ) -> None:
        self.status = status
        self.length_bytes = length_bytes
        self.chunked = chunked
        self.keep_alive = keep_alive
        self.content_type = content_type
        self.text = text
        """All of it, without its empty line."""


class HeadReader:
    """Puts together the head of one answer; interim ones (1xx) before it are skipped."""

    __slots__ = ("_interim", "held")

    def __init__(self) -> None:
        self.held = b""
        """What has come of a head."""
        self._interim = 0

    def feed(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and what came behind it; None: it is not complete. Raises FramingError, ValueError."""
        buffer = self.held + data if self.held else data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head, buffer = read_head(buffer[:end]), buffer[end + 4 :]
            if head.status >= _OK:
                self.held = b""
                self._interim = 0
                return head, buffer
            self._interim += 1
            if head.status == _SWITCHING_PROTOCOLS or self._interim > _MAX_INTERIM_ANSWERS:
                raise FramingError("an upgrade, or too many interim answers")
        if len(buffer) > _MAX_HEAD_BYTES:
            raise FramingError("head too long")
        self.held = buffer
        return None


def read_head(head: bytes) -> Head:
    """Read a head (without its empty line). Raises ValueError.

    Only what an HTTP server of ours needs to say, found without taking all headers apart. What two readers could
    understand in two ways is refused (RFC 9112, 6.3): where an answer ends is where the next one begins.
    """
    if not head.startswith(b"HTTP/1.") or head[8:9] != b" " or not head[9:12].isdigit() or head[12:13].isalnum():
        raise ValueError("not an HTTP/1 answer")
    lower = head.lower()
    if lower.count(b"\n") != lower.count(b"\r\n") or b"\r\n " in lower or b"\r\n\t" in lower or b"\0" in lower:
        raise ValueError("a header line is folded or does not end with CRLF")
    length = _only(lower, b"\r\ncontent-length")
    coding = _only(lower, b"\r\ntransfer-encoding")
    http11 = head[7:8] == b"1"
    if length is not None and (not length.isdigit() or len(length) > 18):
        raise ValueError("content-length is not a number")
    if coding is not None and (coding != b"chunked" or length is not None or not http11):
        raise ValueError("transfer-encoding is not just chunked, or not alone")
    return Head(
        int(head[9:12]),
        None if length is None else int(length),
        chunked=coding is not None,
        keep_alive=b"\r\nconnection: close" not in lower if http11 else b"\r\nconnection: keep-alive" in lower,
        content_type=_header(lower, b"\r\ncontent-type:") or b"application/json",
        text=head,
    )


def _only(head: bytes, name: bytes) -> bytes | None:
    """Value of a header that may stand there once. Raises ValueError."""
    at = head.find(name)
    if at < 0:
        return None
    # Readers differ on `content-length : 5`: one takes the length, another does not.
    if head.find(name, at + 1) >= 0 or head[at + len(name) : at + len(name) + 1] != b":":
        raise ValueError(f"more than one {name[2:].decode()}, or a blank behind its name")
    return _header(head, name + b":")


def _header(head: bytes, name: bytes) -> bytes | None:
    at = head.find(name)
    if at < 0:
        return None
    start = at + len(name)
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()
