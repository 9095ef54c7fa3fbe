"""Cross-origin requests of web pages: which may ask, and what their browsers are told (the Fetch standard, CORS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORIGIN: Final = "origin"
METHOD: Final = "access-control-request-method"
HEADERS: Final = "access-control-request-headers"
_EVERY: Final = "*"
_EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, x-fulcrum-path, x-fulcrum-rejected, retry-after, retry-after-ms, "
    b"x-fulcrum-degraded\r\n"
)
_REMEMBERED: Final = b"access-control-max-age: 7200\r\n"
"""Seconds for which a browser need not ask again; two hours are the most that one takes."""
_MOST_HEADER_BYTES: Final = 1024


class Cors:
    """Which web pages may ask."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)
        self.kept_headers = frozenset((ORIGIN.encode(), METHOD.encode(), HEADERS.encode())) if origins else frozenset()

    def headers(self, request_headers: Mapping[str, str]) -> bytes:
        """Header lines of an answer."""
        if not self._origins:
            return b""
        origin = self._allowed(request_headers)
        if origin is None:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n%b" % (origin, _EXPOSED)

    def preflight(self, request_headers: Mapping[str, str]) -> bytes | None:
        """More header lines for a question ahead of a request (method OPTIONS); None: it is none that is allowed."""
        if METHOD not in request_headers or self._allowed(request_headers) is None:
            return None
        asked = request_headers.get(HEADERS, "")
        if len(asked) > _MOST_HEADER_BYTES or not asked.isascii() or not asked.isprintable():
            return None
        allowed = b"access-control-allow-headers: %b\r\n" % asked.encode() if asked else b""
        return b"access-control-allow-methods: GET, HEAD, POST, OPTIONS\r\n" + allowed + _REMEMBERED

    def _allowed(self, request_headers: Mapping[str, str]) -> bytes | None:
        origin = request_headers.get(ORIGIN)
        if origin is None or not origin.isascii() or not origin.isprintable():
            return None
        if _EVERY in self._origins:
            return b"*"
        return origin.encode() if origin.lower() in self._origins else None
