"""Client bytes -> requests, within limits (RFC 9112)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Final

import httptools

from fulcrum.api.gateway import GatewayLimits
from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.errors import RequestError, bad_request, too_large
from fulcrum.gateway.http.passage import PassedHead
from fulcrum.gateway.http.request import Request, new_request_id, path_of

_MAX_PIPELINED: Final = 256
"""Most requests in one read: each takes far more memory than the few bytes that it can consist of."""
_LARGE_BYTES: Final = 64 * 1024
"""Bodies above this many bytes are not copied again when they are complete."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")


_LENGTH: Final = 0
_TYPE: Final = 1
_REQUEST_ID_HEADER: Final = 2
_HOST: Final = 3
_CODING: Final = 4
_EXPECT: Final = 5
_BODY_CODING: Final = 6
_KINDS: Final = {
    b"content-length": _LENGTH, b"content-type": _TYPE, b"x-request-id": _REQUEST_ID_HEADER, b"host": _HOST,
    b"transfer-encoding": _CODING, b"expect": _EXPECT, b"content-encoding": _BODY_CODING,
}  # fmt: skip


@cache
def _known_headers(kept: frozenset[bytes]) -> dict[bytes, tuple[int | None, str | None]]:
    """What is done with a header: most clients send a dozen of which nothing is read."""
    return {name: (_KINDS.get(name), name.decode("latin-1") if name in kept else None) for name in {*_KINDS, *kept}}


def _too_much_framing() -> RequestError:
    return RequestError(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "Chunk sizes, chunk extensions and trailers are larger than the body: send larger chunks, or a Content-Length.",
    )


class RequestParser:
    """Feeds on bytes; `ready` fills with requests, and ends with a RequestError when the connection cannot go on."""

    __slots__ = (
        "_authenticate", "_body", "_chunked", "_content_type", "_expects_continue", "_framing_bytes", "_has_host",
        "_head_bytes", "_http11", "_keep_alive", "_key", "_known", "_late_head_bytes", "_length_bytes", "_limits",
        "_method", "_number", "_parser", "_passes", "_refused", "_request_id", "_resuming", "_target", "_upgrade_head",
        "body_bytes", "broken", "head_done", "head_seen", "headers", "in_message", "passed_whole", "passing", "path",
        "pieces", "ready", "unauthorized",
    )  # fmt: skip

    def __init__(
        self,
        limits: GatewayLimits,
        kept_headers: frozenset[bytes],
        authenticate: Callable[[str, Mapping[str, str]], ApiKey | None],
        passes: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        """`authenticate`: called once a request, with its path and headers; raises RequestError.

        `passes`: whether the body of a request for a path is passed on unread.
        """
        self._limits = limits
        self._authenticate = authenticate
        self._passes = passes
        self.passing = False
        """The body of the request that is arriving goes to `pieces`. It is the last request of its connection."""
        self.passed_whole = False
        """All of that body has come."""
        self.pieces: list[bytes] = []
        self._known = _known_headers(kept_headers)
        self.headers: dict[str, str] = {}
        """Headers of the request that is arriving, as far as they are kept."""
        self._parser = httptools.HttpRequestParser(self)
        self._upgrade_head = b""
        self._resuming = False
        self._refused: RequestError | None = None
        self.ready: list[Request | RequestError] = []
        self.broken = False
        self._number = 0
        """Of the request that is arriving."""
        self._reset()

    def _reset(self) -> None:
        self._number += 1
        self.in_message = False
        """A request has begun and is not complete."""
        self.head_done = False
        self.head_seen = False
        """The connection has checked the head of the request that is arriving, and sets this."""
        self._head_bytes = 0
        self._late_head_bytes = 0
        self._framing_bytes = 0
        self._method = b""
        self._target = b""
        self.path = ""
        """Of the request that is arriving; empty until its head is complete."""
        self._key: ApiKey | None = None
        self.unauthorized: RequestError | None = None
        """Why the request that is arriving must not be served."""
        self._http11 = True
        self._keep_alive = True
        self._has_host = False
        self._content_type = b""
        self._request_id = b""
        if self.headers:
            self.headers = {}
        self._expects_continue = False
        self._chunked = False
        self._length_bytes = 0
        self._body = bytearray()
        self.body_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse; never raises."""
        if self.broken:
            return
        in_head = self.in_message and not self.head_done
        in_body = self.head_done
        number, body_bytes = self._number, self.body_bytes
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(bad_request(f"The request is not valid HTTP: {error}.", code="invalid_http"))
        if in_head and not self.head_done:
            # Headers without an end call nothing back: count what was fed.
            self._late_head_bytes += len(data)
            self._check_head_bytes(self._late_head_bytes)
        elif in_body and number == self._number:
            # Chunk sizes, extensions and trailers; a long one of these calls nothing back either.
            self._framing_bytes += len(data) - (self.body_bytes - body_bytes)
            if self._framing_bytes > self._limits.max_header_bytes + self.body_bytes:
                self._refuse(_too_much_framing())
        if self._refused is not None:
            self.broken = True
            self.ready.append(self._refused)

    def refuse(self, error: RequestError) -> None:
        """End with `error` instead of the request that is arriving."""
        if not self.broken:
            self._refuse(error)
            self.passing = False
            self.body_bytes = 0
            self.broken = True
            self.ready.append(error)

    def passed_head(self) -> PassedHead:
        """The head of the request that is passed on."""
        return PassedHead(
            self._method, self._target, self._sane_request_id(), self._content_type, self._length_bytes, self._chunked,
            self._key,
        )  # fmt: skip

    @property
    def held_bytes(self) -> int:
        """Bytes that have come of a request that is not complete."""
        return self._head_bytes + self._late_head_bytes + self.body_bytes

    def take_continue(self) -> bool:
        """Whether the client waits for `100 Continue`; true once."""
        waits = self._expects_continue and self.head_done and not self.body_bytes and self._refused is None
        if waits:
            self._expects_continue = False
        return waits

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # RFC 9110, 7.8: an upgrade (h2c, say) may be ignored, but this parser skips the body now. A new one
                # goes on with a head that says the same about the body.
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                self._resuming = True
                head, self._upgrade_head = self._upgrade_head, b""
                self._parser.feed_data(head)
            else:
                return

    def _refuse(self, error: RequestError) -> None:
        if self._refused is None:
            self._refused = error
            self._body = bytearray()

    def _check_head_bytes(self, head_bytes: int) -> None:
        if head_bytes > self._limits.max_header_bytes:
            self._refuse(
                RequestError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"The request head is larger than {self._limits.max_header_bytes} bytes.",
                )
            )

    # httptools

    # What follows a request that is passed on is dropped: nothing of it may get into that request's head.

    def on_message_begin(self) -> None:
        if not self._resuming:
            self.in_message = True

    def on_url(self, url: bytes) -> None:
        if not self._resuming and not self.passed_whole:
            self._target += url
            self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._refused is not None or self.passed_whole:
            return
        self._head_bytes += len(name) + len(value) + 4
        if self.head_done:
            # A trailer: it may say nothing that the head has not said (RFC 9110, 6.5.1), and nothing of it is read.
            self._check_head_bytes(self._head_bytes)
            return
        known = self._known.get(name.lower())
        if known is None:
            return
        kind, kept_name = known
        if kept_name is not None:
            self._keep(kept_name, value.strip().decode("latin-1"))
        if kind == _LENGTH:
            self._length_bytes = int(value)
        elif kind == _TYPE:
            self._content_type = value
        elif kind == _REQUEST_ID_HEADER:
            self._request_id = value
        elif kind == _HOST:
            if self._has_host:
                self._refuse(bad_request("More than one Host header."))
            self._has_host = True
        elif kind is not None:
            self._check_header(kind, value.strip().lower())

    def _keep(self, name: str, value: str) -> None:
        before = self.headers.get(name)
        self.headers[name] = value if before is None else f"{before}, {value}"

    def _check_header(self, kind: int, value: bytes) -> None:
        if kind == _CODING:
            self._chunked = True
            if value != b"chunked":
                self._refuse(bad_request("The only transfer coding here is chunked.", code="invalid_http"))
        elif kind == _EXPECT:
            self._expects_continue = True
            if value != b"100-continue":
                self._refuse(RequestError(HTTPStatus.EXPECTATION_FAILED, "Only 100-continue can be expected."))
        elif value != b"identity":
            self._refuse(RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Compressed bodies are not supported."))

    def on_headers_complete(self) -> None:
        if self._resuming or self.passed_whole:
            return
        self.head_done = True
        parser = self._parser
        version = parser.get_http_version()
        self._http11 = version == "1.1"
        # HTTP/1.0 knows no chunks: what follows them may not be a request (RFC 9112, 6.1).
        self._keep_alive = parser.should_keep_alive() and (self._http11 or not self._chunked)
        self._method = parser.get_method()
        self._check_head_bytes(self._head_bytes)
        if version not in ("1.0", "1.1"):
            self._refuse(bad_request("HTTP/1.1 is spoken here.", code="invalid_http"))
        if self._http11 and not self._has_host:
            self._refuse(bad_request("A Host header is required."))
        self.path = path_of(self._target)
        try:
            self._key = self._authenticate(self.path, self.headers)
        except RequestError as error:
            self.unauthorized = error
        self.passing = (
            self._refused is None
            and self.unauthorized is None
            and self._target.startswith(b"/")
            and not parser.should_upgrade()
            and self._passes(self.path)
        )
        if self._length_bytes > self._limits.max_body_bytes and not self.passing:
            self._refuse(too_large(self._limits.max_body_bytes))
        if parser.should_upgrade():
            coding = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % self._length_bytes
            self._upgrade_head = b"POST / HTTP/1.1\r\n%b\r\n\r\n" % coding

    def on_body(self, body: bytes) -> None:
        if self.passing:
            if not self.passed_whole:
                self.body_bytes += len(body)
                self.pieces.append(body)
            return
        self.body_bytes += len(body)
        if self.body_bytes > self._limits.max_body_bytes:
            self._refuse(too_large(self._limits.max_body_bytes))
        elif self._refused is None:
            self._body += body

    def on_message_complete(self) -> None:
        if self._upgrade_head or self._refused is not None:
            return
        if self.passing:
            self.passed_whole = True
            return
        if len(self.ready) >= _MAX_PIPELINED:
            self._refuse(RequestError(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests at once on one connection."))
            return
        self._resuming = False
        self.ready.append(
            Request(
                method=self._method,
                path=self.path,
                http11=self._http11,
                keep_alive=self._keep_alive,
                request_id=self._sane_request_id(),
                content_type=self._content_type,
                headers=self.headers,
                key=self._key,
                unauthorized=self.unauthorized,
                body=self._body if len(self._body) > _LARGE_BYTES else bytes(self._body),
            )
        )
        self._reset()

    def _sane_request_id(self) -> bytes:
        if self._request_id and _REQUEST_ID.fullmatch(self._request_id):
            return self._request_id
        return new_request_id()
