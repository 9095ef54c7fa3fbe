"""The head of an engine's answer. Compiled (hatch_build.py)."""

from __future__ import annotations


class Head:
    """What a response head says about its body."""

    __slots__ = ("chunked", "content_type", "keep_alive", "length_bytes", "status")

    def __init__(
        self, status: int, length_bytes: int | None, *, chunked: bool, keep_alive: bool, content_type: bytes
    ) -> None:
        self.status = status
        self.length_bytes = length_bytes
        self.chunked = chunked
        self.keep_alive = keep_alive
        self.content_type = content_type


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
        chunked=length is None and (_header(lower, b"\r\ntransfer-encoding:") or b"").endswith(b"chunked"),
        keep_alive=b"\r\nconnection: close" not in lower if http11 else b"\r\nconnection: keep-alive" in lower,
        content_type=_header(lower, b"\r\ncontent-type:") or b"application/json",
    )


def _header(head: bytes, name: bytes) -> bytes | None:
    at = head.find(name)
    if at < 0:
        return None
    start = at + len(name)
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()
