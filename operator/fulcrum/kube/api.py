"""Calls on URL paths with plain JSON, every one with a deadline."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fulcrum.kube.errors import ApiError, Unreachable
from fulcrum.kube.reading import ObjectReader, Unreadable
from fulcrum.kube.resources import Json

if TYPE_CHECKING:
    from kubernetes.aio.client.rest import RESTResponse

    from fulcrum.kube.connection import Connection

STRATEGIC: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"

REQUEST_SECONDS: Final = 15.0
"""Deadline of a call, the answer included."""
CONNECT_SECONDS: Final = 5.0
"""Deadline of a new connection, within that of the call."""
_READER: Final = ObjectReader(Any)
_DECODER: Final = msgspec.json.Decoder()

Params = Mapping[str, str]


class Api:
    """One API server. Errors of every call: `ApiError` (refused), `Unreachable` (no answer), `ConfigError`."""

    def __init__(self, kubeconfig: str | Path | None = None, *, timeout_seconds: float = REQUEST_SECONDS) -> None:
        """`kubeconfig`: a file; None takes what the environment names. It is read with the first call."""
        self._kubeconfig = kubeconfig
        self._timeout_seconds = timeout_seconds
        self._connection: Connection | None = None

    async def connect(self) -> Connection:
        """Read the configuration unless that has been done; nothing is sent. Errors: ConfigError."""
        from fulcrum.kube.connection import Connection

        if self._connection is None:
            opened = await Connection.open(self._kubeconfig)
            if self._connection is None:  # another call may have been quicker
                self._connection = opened
        return self._connection

    async def close(self) -> None:
        """End every connection; the next call opens new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        params: Params | None = None,
    ) -> bytes:
        """One request; returns the body of its answer."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS)
        for attempt in (1, 2):
            try:
                response = await self._send(method, path, body, content_type, params, timeout)
                content: bytes = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise await self._unreachable(error) from error
            if response.status == 401 and attempt == 1 and await (await self.connect()).refresh():
                continue
            break
        if response.status >= 400:
            raise _refusal(response.status, content)
        return content

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        params: Params | None = None,
    ) -> Json:
        """One request; returns the object of its answer (`{}` when it is none)."""
        return _as_object(await self.request(method, path, body=body, content_type=content_type, params=params))

    async def get(self, path: str, params: Params | None = None) -> Json:
        """Read an object, or one page of a collection."""
        return await self.call("GET", path, params=params)

    async def create(self, path: str, body: Json, params: Params | None = None) -> Json:
        """Create an object in a collection."""
        return await self.call("POST", path, body=body, params=params)

    async def replace(self, path: str, body: Json) -> Json:
        """Write a whole object."""
        return await self.call("PUT", path, body=body)

    async def patch(self, path: str, body: Any, *, content_type: str = STRATEGIC, params: Params | None = None) -> Json:
        """Change an object."""
        return await self.call("PATCH", path, body=body, content_type=content_type, params=params)

    async def delete(
        self, path: str, *, uid: str | None = None, grace_seconds: int | None = None, propagation: str | None = None
    ) -> Json:
        """Delete an object; with `uid` only if it still is that one (else 409)."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self.call("DELETE", path, body=options)

    async def stream(
        self, path: str, params: Params, *, seconds: float | None = None, silence_seconds: float | None = None
    ) -> AsyncIterator[bytes]:
        """Chunks of a long answer; `seconds` bounds all of it, `silence_seconds` the wait for the next chunk."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        response = None
        try:
            response = await self._send("GET", path, None, "application/json", params, timeout)
            if response.status == 401:
                await (await self.connect()).refresh()
            if response.status >= 400:
                raise _refusal(response.status, await response.read())
            yield b""  # it is connected, whether or not there is anything to say yet
            async for chunk in response.response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise await self._unreachable(error) from error
        finally:
            if response is not None:
                response.response.close()

    async def _send(  # noqa: PLR0917 - private, all of them needed
        self, method: str, path: str, body: Any, content_type: str, params: Params | None, timeout: Any
    ) -> RESTResponse:
        client = (await self.connect()).client
        headers = {"Accept": "application/json", "Content-Type": content_type}
        # The body is not handed to the package's serializer: it is JSON-like already.
        _, url, headers, _, _ = await client.param_serialize(
            method,
            path,
            query_params=list((params or {}).items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        return await client.call_api(method, url, headers, body, _request_timeout=timeout)

    async def _unreachable(self, error: Exception) -> Unreachable:
        import aiohttp

        nobody_there = aiohttp.ClientSSLError | aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
        if isinstance(error, nobody_there) and self._connection is not None:
            with contextlib.suppress(OSError):
                await self._connection.refresh()
        return Unreachable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _as_object(content: bytes) -> Json:
    if not content:
        return {}
    found = _READER.read(content)
    if isinstance(found, Unreadable):
        return found.stub
    if found is None:
        raise Unreachable("the answer is no JSON that can be read")
    return found if isinstance(found, dict) else {}


def _refusal(code: int, content: bytes) -> ApiError:
    try:
        status = _DECODER.decode(content)
        return ApiError(code, status.get("reason") or "", status.get("message") or "")
    except (msgspec.DecodeError, RecursionError, AttributeError):
        return ApiError(code, "", content[:300].decode(errors="replace"))
