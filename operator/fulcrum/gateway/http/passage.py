"""One request on its way to another server as bytes, and that server's answer back: neither is ever whole in memory."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Protocol, cast

from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization
from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.errors import RequestError, no_worker, upstream_failed
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk

SILENCE_SECONDS: Final = 60.0
"""Longest time in which nothing moves in either direction, after which both connections are cut."""
_CONNECT_SECONDS: Final = 5.0
_HIGH_WATER_BYTES: Final = 256 * 1024
_LONGEST_LINE_BYTES: Final = 256


class PassedHead(NamedTuple):
    """Head of a request whose body is not read here."""

    method: bytes
    target: bytes
    request_id: bytes
    content_type: bytes
    length_bytes: int
    chunked: bool
    key: ApiKey | None


class Destination(NamedTuple):
    """Where requests are passed on to."""

    host: str
    port: int
    token: str | None
    """That the server asks for."""
    key_header: str
    """Header that tells it the name of the client's key, which was checked here. The key itself is not sent."""


class Client(Protocol):
    """The connection that the request comes by."""

    def pause_reading(self) -> None:
        """Read no more of the body."""

    def resume_reading(self) -> None:
        """Read on."""

    def passed_back(self, data: bytes) -> None:
        """Send bytes of the answer."""

    def passage_ended(self, error: RequestError | None) -> None:
        """The answer is whole; or there is none, and this is why."""


def head_of(head: PassedHead, to: Destination) -> bytes:
    """The head as it is sent on. Nothing of the client's is in it but its target, its type and its length."""
    address = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
    lines = [b"%b %b HTTP/1.1" % (head.method, head.target), b"host: " + address.encode(), b"connection: close"]
    if to.token is not None:
        lines.append(f"{AUTHORIZATION.lower()}: {authorization(to.token)}".encode())
    if head.key is not None:
        lines.append(f"{to.key_header}: {head.key.name}".encode())
    lines.append(b"x-request-id: " + head.request_id)
    if head.content_type:
        lines.append(b"content-type: " + head.content_type)
    lines.append(b"transfer-encoding: chunked" if head.chunked else b"content-length: %d" % head.length_bytes)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _not_ready() -> RequestError:
    return no_worker("The batch process of this cluster is not ready. Retry later.")


class Passage(asyncio.Protocol):
    """The connection to the other server, which has one request only."""

    def __init__(self, client: Client, head: PassedHead, to: Destination | None, lines: bytes) -> None:
        """`to`: None where the server is not known to be there. `lines`: header lines that the answer gets."""
        self._client = client
        self._head = head
        self._to = to
        self._lines = lines
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = [] if to is None else [head_of(head, to)]
        self._first = b""
        self._begun = False
        self._over = False
        self._paused = False

    async def connect(self) -> None:
        """Connect, and send what has come by then. Raises nothing."""
        to = self._to
        if to is None:
            self._end(_not_ready())
            return
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(lambda: self, to.host, to.port)
        except (OSError, TimeoutError):
            self._end(_not_ready())

    def feed(self, pieces: list[bytes], *, whole: bool) -> None:
        """Send parts of the body; `whole`: these are the last ones."""
        if self._head.chunked:
            pieces = [chunk(piece) for piece in pieces]
            if whole:
                pieces.append(LAST_CHUNK)
        if self._transport is None:
            self._waiting.extend(pieces)
        else:
            self._transport.writelines(pieces)

    def pause(self) -> None:
        """The client does not take the answer as fast as it comes."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """It does again."""
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """The client has gone."""
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._transport.writelines(self._waiting)
        self._waiting = []
        if self._paused:
            self._transport.pause_reading()
        self._client.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if not self._begun:
            line, end, rest = (self._first + data).partition(b"\r\n")
            if not end:
                self._first = line
                if len(line) > _LONGEST_LINE_BYTES:
                    self._end(upstream_failed("The batch process answered no HTTP."))
                return
            self._begun = True
            data = line + end + self._lines + rest
        self._client.passed_back(data)

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(None if self._begun else upstream_failed("The batch process broke the request off. Retry later."))

    def _end(self, error: RequestError | None) -> None:
        if self._over:
            return
        self._over = True
        if self._transport is not None:
            self._transport.abort()
        self._client.passage_ended(error)
