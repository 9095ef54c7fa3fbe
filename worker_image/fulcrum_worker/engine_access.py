"""Access to a worker: the engine and the agent ask for the cluster's token, and the agent sends it to its own engine.

vLLM's own check covers only paths such as `/v1` (0.32): `/invocations`, say, would generate text for any caller. Here
everything is closed but what health checks and Prometheus read.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from fulcrum.api.internal_token import ENV_WORKER, HEADER, authorization, is_authorized

GUARD: Final = "fulcrum_worker.engine_access.EngineGuard"
"""For vLLM's `--middleware`."""
OPEN_PATHS: Final = frozenset(("/health", "/metrics", "/metrics/"))
REFUSAL: Final = (
    f"This worker asks for its cluster's internal token ({HEADER}: Bearer TOKEN), which is in the Secret "
    "CLUSTER-internal. Clients send their requests to the gateway."
)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Application = Callable[[_Message, _Receive, _Send], Awaitable[None]]


def token_from(environment: Mapping[str, str]) -> str | None:
    """Return the token that this worker asks for; None: it was made without one."""
    return environment.get(ENV_WORKER) or None


def headers_of(token: str | None) -> dict[str, str]:
    """Return the headers of a request to a worker that asks for `token`."""
    return {} if token is None else {HEADER: authorization(token)}


class EngineGuard:
    """ASGI middleware in front of vLLM."""

    def __init__(self, app: _Application) -> None:
        self._app = app
        self._token = token_from(os.environ)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on what carries the token, or needs none."""
        if self._token is None or _is_open(scope) or is_authorized(_header(scope), self._token):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no token"})
        else:
            await _refuse(send)


def _is_open(scope: _Message) -> bool:
    if scope["type"] == "http":
        return scope["method"] == "GET" and scope["path"] in OPEN_PATHS
    return bool(scope["type"] != "websocket")


def _header(scope: _Message) -> str | None:
    """The one header that may carry the token; None: there is none, or more than one."""
    wanted = HEADER.lower().encode()
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else None


async def _refuse(send: _Send) -> None:
    body = msgspec.json.encode({"error": {"message": REFUSAL, "type": "invalid_request_error", "code": 401}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
