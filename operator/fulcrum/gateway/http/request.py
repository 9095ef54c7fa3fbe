"""A complete request, as its connection hands it on."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.errors import RequestError

_PROCESS_ID: Final = secrets.token_hex(8).encode()
_COUNTER: Final = itertools.count(secrets.randbits(32))


class Request:
    """A complete request."""

    __slots__ = (
        "body", "content_type", "headers", "http11", "keep_alive", "key", "method", "path", "request_id",
        "unauthorized",
    )  # fmt: skip

    def __init__(
        self,
        *,
        method: bytes,
        path: str,
        http11: bool,
        keep_alive: bool,
        request_id: bytes,
        content_type: bytes,
        headers: Mapping[str, str],
        key: ApiKey | None,
        unauthorized: RequestError | None,
        body: bytes | bytearray,
    ) -> None:
        self.method = method
        self.path = path
        """Of its target, without the query."""
        self.http11 = http11
        self.keep_alive = keep_alive
        self.request_id = request_id
        """The client's `X-Request-Id` if it is sane, else a new one."""
        self.content_type = content_type
        self.headers = headers
        """Headers that the gateway asked for, names in lower case; a repeated one holds all values (RFC 9110, 5.3)."""
        self.key = key
        """None where none is needed, or none was given that is known."""
        self.unauthorized = unauthorized
        """Why it must not be served; None: it may be."""
        self.body = body
        """A large one as it was put together, uncopied; it does not change any more."""

    def require_key(self) -> ApiKey | None:
        """Its key, if keys are asked for. Raises RequestError (401)."""
        if self.unauthorized is not None:
            raise self.unauthorized
        return self.key


def new_request_id() -> bytes:
    """A request id of our own, unique across gateways; a counter is much cheaper than randomness for each."""
    return b"%b%016x" % (_PROCESS_ID, next(_COUNTER))


def path_of(target: bytes) -> str:
    """The path of a request target, decoded: no other place decodes it."""
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):  # absolute form: http://host/path
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1")
