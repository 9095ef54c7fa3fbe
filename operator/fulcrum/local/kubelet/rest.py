"""Kubernetes REST calls on plain JSON, with the preconditions that a kubelet needs.

lightkube reads the kubeconfig and authenticates; its typed client has no uid preconditions on DELETE and no bookmarks,
and without the precondition a kubelet could delete the successor of a Pod that has the same name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig

_DECODER: Final = msgspec.json.Decoder()
Json = dict[str, Any]

STRATEGIC: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"

_WATCH_SECONDS: Final = 240
_MAX_DELAY_SECONDS: Final = 5.0


class ApiError(Exception):
    """The API server refused a call; `code` is the HTTP status, `reason` the Status' reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or f"HTTP {code}")
        self.code = code
        self.reason = reason


class Unreachable(Exception):  # noqa: N818 - reads as what it is
    """The API server could not be reached; try again later."""


class Api:
    """One API server. Errors: `ApiError` (it refused), `Unreachable` (no answer)."""

    def __init__(self, config: SingleConfig, *, timeout_seconds: float = 10.0) -> None:
        self.config = config
        params = client_adapter.ConnectionParams(timeout=httpx2.Timeout(timeout_seconds), trust_env=False)
        self._client = client_adapter.AsyncClient(config, params)

    @classmethod
    def from_kubeconfig(cls, path: str | Path | None, *, timeout_seconds: float = 10.0) -> Api:
        """Read `path`, or what the environment names when it is None. Errors: ValueError when it names no context."""
        loaded = KubeConfig.from_env() if path is None else KubeConfig.from_file(str(path))
        config = loaded.get()
        if config is None:
            raise ValueError(f"{path}: no current context")
        return cls(config, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> Json:
        """One request; returns the decoded answer (`{}` when it has no JSON object)."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = content_type
        try:
            response = await self._client.request(method, path, content=content, headers=headers, params=params)
        except httpx2.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if response.status_code >= 400:
            raise _api_error(response.status_code, response.content)
        return _as_object(response.content)

    async def get(self, path: str, params: dict[str, str] | None = None) -> Json:
        return await self.call("GET", path, params=params)

    async def create(self, path: str, body: Json) -> Json:
        return await self.call("POST", path, body=body)

    async def replace(self, path: str, body: Json) -> Json:
        return await self.call("PUT", path, body=body)

    async def patch(self, path: str, body: Json, *, content_type: str = STRATEGIC) -> Json:
        return await self.call("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, *, uid: str | None = None, grace_seconds: int | None = None) -> Json:
        """DELETE; with `uid` only if the object still is that one (else 409)."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self.call("DELETE", path, body=options)

    async def stream(self, path: str, params: dict[str, str]) -> AsyncIterator[bytes]:
        """Raw chunks of a long answer (a log that is followed)."""
        timeout = httpx2.Timeout(10.0, read=None)
        try:
            async with self._client.stream("GET", path, params=params, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise _api_error(response.status_code, await response.aread())
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx2.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    async def watch(self, path: str, params: dict[str, str]) -> AsyncIterator[tuple[str, Json]]:
        """(type, object) of each watch event until the server ends the stream. An ERROR event raises `ApiError`."""
        # The server closes after _WATCH_SECONDS; a silence longer than that is a dead connection.
        timeout = httpx2.Timeout(10.0, read=_WATCH_SECONDS + 30)
        query = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        try:
            async with self._client.stream("GET", path, params=query, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise _api_error(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if not line:
                        continue
                    event = _DECODER.decode(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event["type"], event["object"]
        except httpx2.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error


async def list_and_watch(
    api: Api,
    path: str,
    *,
    params: dict[str, str] | None = None,
    on_list: Callable[[list[Json]], None],
    on_event: Callable[[str, Json], None],
    on_error: Callable[[Exception], None],
) -> None:
    """Follow a collection for ever: a list (`on_list`), each change (`on_event`), a new list when the version is gone.

    A new list is the only statement about what vanished: a re-list sends no DELETED.
    """
    query = dict(params or {})
    delay_seconds = 0.1
    while True:
        try:
            listed = await api.get(path, {**query})
            on_list(listed.get("items") or [])
            delay_seconds = 0.1
            version: str = listed["metadata"]["resourceVersion"]
            while True:
                async for kind, item in api.watch(path, {**query, "resourceVersion": version}):
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        on_event(kind, item)
        except ApiError as error:
            if error.code != 410:
                on_error(error)
        except (Unreachable, msgspec.DecodeError, KeyError) as error:
            on_error(error)
        await asyncio.sleep(delay_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - spreads retries, no secret
        delay_seconds = min(delay_seconds * 2, _MAX_DELAY_SECONDS)


def _as_object(content: bytes) -> Json:
    if not content:
        return {}
    decoded = _DECODER.decode(content)
    return decoded if isinstance(decoded, dict) else {}


def _api_error(code: int, content: bytes) -> ApiError:
    try:
        status = _as_object(content)
    except msgspec.DecodeError:
        return ApiError(code, "", content[:300].decode(errors="replace"))
    return ApiError(code, status.get("reason", ""), status.get("message", ""))
