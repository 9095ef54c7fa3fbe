"""The gateway's second port, for the cluster and not for clients: metrics, and what canaries found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

_HEAD_SECONDS: Final = 5.0
_HEAD_BYTES: Final = 16 * 1024
_TEXT: Final = b"text/plain; charset=utf-8"

Page = Callable[[], tuple[bytes, bytes]]
"""Content type and body of a page."""


class InternalServer:
    """Answers `GET` for a few pages, one request per connection: scrapers come every few seconds."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = {path.encode(): page for path, page in pages.items()}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        page = self._pages.get(rest.partition(b" ")[0].partition(b"?")[0])
        if method not in (b"GET", b"HEAD"):
            status, kind, body = b"405 Method Not Allowed", _TEXT, b"GET and HEAD are allowed here.\n"
        elif page is None:
            status, kind, body = b"404 Not Found", _TEXT, b"Here are: " + b", ".join(self._pages) + b"\n"
        else:
            status, (kind, body) = b"200 OK", page()
        return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
            status, kind, len(body), b"" if method == b"HEAD" else body,
        )  # fmt: skip
