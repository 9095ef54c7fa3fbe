"""The gateway's second port, for the cluster, not for clients: probes, metrics, pairs, the ring, other gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import is_authorized, record_token

_HEAD_SECONDS: Final = 5.0
"""Longest wait for a whole request, and for an answer to be read; other gateways keep their connections for less."""
_HEAD_BYTES: Final = 16 * 1024
_BODY_BYTES: Final = 1024 * 1024
MOST_CONNECTIONS: Final = 256
"""Connections at once: 100 gateways, and what scrapes them. A new one takes the place of the one that says nothing for
longest, so that a probe is always heard."""
MOST_READERS: Final = 192
"""Connections that may have an answer under way which is no probe's; the other places are kept for probes."""
_TEXT: Final = b"text/plain; charset=utf-8"

Page = Callable[[str], tuple[bytes, bytes]]
"""Content type and body of a page, for an `Accept` header."""
Inbox = Callable[[bytes], int]
"""Takes a message; returns the status of the answer."""
Guarded = Callable[[str], tuple[int, bytes, bytes]]
"""Status, content type and body of a page for holders of the token, for a query."""
Probe = Callable[[], str | None]
"""Why a probe fails; None: it does not."""


class InternalServer:
    """Answers `GET` for a few pages, one request per connection: scrapers come every few seconds.

    Takes messages by `POST` from callers with the cluster's token, any number of them on one connection. Guarded pages
    are for them, and for callers with its record token; these are large, so one such answer is under way at a time.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        inboxes: Mapping[str, Inbox] | None = None,
        probes: Mapping[str, Probe] | None = None,
        *,
        guarded: Mapping[str, Guarded] | None = None,
        token: str | None = None,
    ) -> None:
        """Without `token` no message is taken, and guarded pages are for everyone who reaches this port."""
        self._pages = {path.encode(): page for path, page in pages.items()}
        self._inboxes = {path.encode(): inbox for path, inbox in (inboxes or {}).items() if token is not None}
        self._probes = {path.encode(): probe for path, probe in (probes or {}).items()}
        self._guarded = {path.encode(): page for path, page in (guarded or {}).items()}
        self._large: asyncio.StreamWriter | None = None
        """The connection with the answer from a guarded page."""
        self._token = token or ""
        self._readers = () if token is None else (token, record_token(token))
        """Tokens that guarded pages are for."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Of these, the ones without a whole request; those first that are so for longest."""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more, and break off what is open."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= MOST_CONNECTIONS:
            if not self._silent:
                writer.transport.abort()
                return
            oldest = next(iter(self._silent))
            self._forget(oldest)
            oldest.transport.abort()
        self._writers.add(writer)
        try:
            more = True
            while more:
                async with asyncio.timeout(_HEAD_SECONDS):
                    self._silent.pop(writer, None)
                    self._silent[writer] = None  # the last one now
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, _, rest = head.partition(b" ")
                    inbox = self._inboxes.get(rest.partition(b" ")[0])
                    if method == b"POST" and inbox is not None:
                        status = await self._take(head, reader, inbox)
                        more = status < HTTPStatus.BAD_REQUEST
                        writer.write(_head(status, keep=more) + b"content-length: 0\r\n\r\n")
                    else:
                        self._silent.pop(writer, None)
                        writer.write(self._answer(method, head, rest, writer))
                        more = False
                    await writer.drain()
            writer.close()
            async with asyncio.timeout(_HEAD_SECONDS):
                await writer.wait_closed()  # a scraper that does not read keeps no place
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._forget(writer)
            writer.transport.abort()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        self._silent.pop(writer, None)
        if self._large is writer:
            self._large = None

    async def _take(self, head: bytes, reader: asyncio.StreamReader, inbox: Inbox) -> int:
        """Hand a message on; nothing of it is read before its sender is known."""
        fields = _fields(head)
        if not is_authorized(fields.get(AUTHORIZATION.lower()), self._token):
            return HTTPStatus.UNAUTHORIZED
        length = fields.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return HTTPStatus.LENGTH_REQUIRED
        if len(length) > len(str(_BODY_BYTES)) or int(length) > _BODY_BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return inbox(await reader.readexactly(int(length)))

    def _answer(self, method: bytes, head: bytes, rest: bytes, writer: asyncio.StreamWriter) -> bytes:
        path, _, query = rest.partition(b" ")[0].partition(b"?")
        guarded = self._guarded.get(path)
        if guarded is not None and method in (b"GET", b"HEAD"):
            status, kind, body = self._guard(guarded, head, query, writer)
        else:
            status, kind, body = self._find(method, path, head)
        return b"%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            _head(status, keep=False), kind, len(body), b"" if method == b"HEAD" else body,
        )  # fmt: skip

    def _guard(
        self, page: Guarded, head: bytes, query: bytes, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes, bytes]:
        given = _fields(head).get(AUTHORIZATION.lower())
        if self._readers and not any(is_authorized(given, token) for token in self._readers):
            return HTTPStatus.UNAUTHORIZED, _TEXT, b"Send the cluster's record token: Authorization: Bearer TOKEN\n"
        if self._large is not None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"Another one is being read. Try again.\n"
        self._large = writer
        return page(query.decode("latin-1"))

    def _find(self, method: bytes, path: bytes, head: bytes) -> tuple[int, bytes, bytes]:
        if method not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"GET and HEAD are allowed here.\n"
        if (probe := self._probes.get(path)) is not None:
            why = probe()
            status = HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE
            return status, _TEXT, (why or "ok").encode() + b"\n"
        page = self._pages.get(path)
        if page is None:
            return (
                HTTPStatus.NOT_FOUND,
                _TEXT,
                b"Here are: " + b", ".join((*self._pages, *self._guarded, *self._probes)) + b"\n",
            )
        if len(self._writers) - len(self._silent) > MOST_READERS:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"Too many answers wait to be read.\n"
        return HTTPStatus.OK, *page(_fields(head).get("accept", ""))


def _head(status: int, *, keep: bool) -> bytes:
    line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return line if keep else line + b"connection: close\r\n"


def _fields(head: bytes) -> dict[str, str]:
    """Header fields by name in lower case; of repeated ones the last."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.lower(): value.strip() for name, _, value in pairs}
