"""Access to a worker: the engine and the agent ask for the cluster's token, and the agent sends it to its own engine.

vLLM's own check covers only paths such as `/v1` (0.32): `/invocations`, say, would generate text for any caller. Here
everything is closed but what health checks and Prometheus read.

An engine with sleep mode has vLLM's development routes (`/sleep`, `/collective_rpc`, `/update_weights` and others).
With them a caller could run any method of the engine's workers. Only the agent has the key to what gateways do not
call.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from fulcrum.api.internal_token import ENV_WORKER, HEADER, authorization, is_authorized

GUARD: Final = "fulcrum_worker.engine_access.EngineGuard"
"""For vLLM's `--middleware`."""
OPEN_PATHS: Final = frozenset(("/health", "/metrics", "/metrics/"))
SERVED_PATHS: Final = frozenset(("/tokenize", "/detokenize", "/score", *OPEN_PATHS))
"""With all below `/v1/`: what gateways, Prometheus and the agent itself call of an engine that serves."""
ENV_AGENT_KEY: Final = "FULCRUM_AGENT_KEY"
"""Made anew by each agent, and known to its engine only; set where the engine has sleep mode."""
HEADER_AGENT_KEY: Final = "X-Fulcrum-Agent-Key"
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


def agent_headers(key: str) -> dict[str, str]:
    """Return the headers of a call that only the agent may make."""
    return {HEADER_AGENT_KEY: key}


class EngineGuard:
    """ASGI middleware in front of vLLM."""

    def __init__(self, app: _Application) -> None:
        self._app = app
        self._token = token_from(os.environ)
        self._agent_key = os.environ.get(ENV_AGENT_KEY) or None

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on what carries the token, or needs none."""
        if not self._may_see(scope):
            await _refuse(send, HTTPStatus.NOT_FOUND, "Not Found")
        elif self._token is None or _is_open(scope) or is_authorized(_header(scope, HEADER), self._token):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no token"})
        else:
            await _refuse(send, HTTPStatus.UNAUTHORIZED, REFUSAL)

    def _may_see(self, scope: _Message) -> bool:
        if self._agent_key is None or scope["type"] != "http":
            return True
        path = scope["path"]
        if path.startswith("/v1/") or path in SERVED_PATHS:
            return True
        given = _header(scope, HEADER_AGENT_KEY)
        return given is not None and hmac.compare_digest(given.encode(), self._agent_key.encode())


def _is_open(scope: _Message) -> bool:
    if scope["type"] == "http":
        return scope["method"] == "GET" and scope["path"] in OPEN_PATHS
    return bool(scope["type"] != "websocket")


def _header(scope: _Message, header: str) -> str | None:
    """The one header of that name; None: there is none, or more than one."""
    wanted = header.lower().encode()
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else None


async def _refuse(send: _Send, status: HTTPStatus, message: str) -> None:
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "code": status.value}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
