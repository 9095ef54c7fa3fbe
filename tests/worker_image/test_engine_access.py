"""Who may use a worker that has a token: its agent's calls, and what stands in front of vLLM."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from tests.worker_image.agents import free_address, worker_config

from fulcrum.api.names import Role
from fulcrum_worker.engine_access import EngineGuard, headers_of, token_from
from fulcrum_worker.roles import WorkerRole
from fulcrum_worker.server import make_app
from fulcrum_worker.state import WorkerState

TOKEN = "the-clusters-token"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("token", "headers", "refused"),
    [
        (TOKEN, RIGHT, False),
        (TOKEN, {"authorization": f"bearer {TOKEN}"}, False),
        (TOKEN, {}, True),
        (TOKEN, {"Authorization": "Bearer another"}, True),
        (TOKEN, {"Authorization": f"Basic {TOKEN}"}, True),
        (None, {}, False),
        (None, RIGHT, False),  # made by an operator of the release before: a token does no harm
    ],
)
@pytest.mark.parametrize("path", ["/role", "/drain", "/anything"])
async def test_only_with_the_token_is_anything_changed(
    token: str | None, headers: dict[str, str], refused: bool, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ip = free_address()
    async with ClientSession() as session:
        state = WorkerState(
            session=session, engine_url=f"http://{ip}:8000", side_channels=((ip, 5600),),
            role=WorkerRole(role=Role.PREFILL, epoch=3), token=token, engine_alive=True, warm=True,
        )  # fmt: skip
        assert TOKEN not in repr(state)
        async with TestClient[web.Request, web.Application](TestServer(make_app(worker_config(), state))) as client:
            body = {"role": "decode", "roleEpoch": 4}
            async with client.post(path, json=body, headers=headers) as response:
                assert (response.status == 401) is refused
                if refused:
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                    message = (await response.json())["error"]["message"]
                    assert "internal token" in message
                    assert TOKEN not in message
            changed = state.role.draining if path == "/drain" else state.role.epoch == 4
            assert changed is (not refused and path != "/anything")
            for reading in ("/healthz", "/load", "/metrics"):
                async with client.get(reading) as response:
                    assert response.status == 200
    assert TOKEN not in caplog.text


async def test_two_authorization_headers_are_none(caplog: pytest.LogCaptureFixture) -> None:
    ip = free_address()
    async with ClientSession() as session:
        state = WorkerState(
            session=session, engine_url=f"http://{ip}:8000", side_channels=((ip, 5600),),
            role=WorkerRole(role=Role.PREFILL, epoch=3), token=TOKEN,
        )  # fmt: skip
        async with TestClient[web.Request, web.Application](TestServer(make_app(worker_config(), state))) as client:
            twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
            async with client.post("/drain", headers=twice) as response:
                assert response.status == 401


class Engine:
    """What is behind the guard."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self.reached.append(scope.get("path", scope["type"]))


async def ask(monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], token: str | None = TOKEN) -> tuple[bool, Any]:
    """Whether the engine was reached, and what was sent instead."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if token is not None:
        monkeypatch.setenv("VLLM_API_KEY", token)
    engine, sent = Engine(), []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read of a request that is refused")

    await EngineGuard(engine)({"type": "http", "method": "POST", "headers": [], **scope}, receive, send)
    return bool(engine.reached), sent[0] if sent else None


@pytest.mark.parametrize(
    ("scope", "reached"),
    [
        ({"path": "/v1/completions"}, False),
        ({"path": "/v1/completions", "headers": [(b"authorization", b"Bearer " + TOKEN.encode())]}, True),
        ({"path": "/v1/completions", "headers": [(b"authorization", b"Bearer x")]}, False),
        ({"path": "/v1/completions", "headers": [(b"authorization", b"Bearer " + TOKEN.encode())] * 2}, False),
        # vLLM's own check (0.32) lets these through.
        ({"path": "/invocations"}, False),
        ({"path": "/tokenize"}, False),
        ({"path": "/v1/models", "method": "OPTIONS"}, False),
        ({"path": "/v1/models", "method": "GET"}, False),
        ({"path": "/metrics", "method": "GET"}, True),
        ({"path": "/health", "method": "GET"}, True),
        ({"path": "/health", "method": "POST"}, False),
        ({"path": "/metrics/../v1/models", "method": "GET"}, False),
        ({"type": "lifespan"}, True),
    ],
)
async def test_what_reaches_the_engine(monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], reached: bool) -> None:
    came, sent = await ask(monkeypatch, scope)
    assert came is reached
    assert reached or sent["status"] == 401
    assert await ask(monkeypatch, scope, token=None) == (True, None)


async def test_a_websocket_without_the_token_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    came, sent = await ask(monkeypatch, {"type": "websocket", "path": "/v1/realtime"})
    assert (came, sent["type"], sent["code"]) == (False, "websocket.close", 1008)


@pytest.mark.parametrize(
    ("environment", "token"), [({}, None), ({"VLLM_API_KEY": ""}, None), ({"VLLM_API_KEY": "t"}, "t")]
)
def test_the_token_comes_from_the_environment(environment: dict[str, str], token: str | None) -> None:
    assert token_from(environment) == token
    assert headers_of(token) == ({} if token is None else {"Authorization": "Bearer t"})


def test_the_guard_is_where_vllm_looks_for_it() -> None:
    from importlib import import_module

    from fulcrum_worker.engine_access import GUARD

    module, _, name = GUARD.rpartition(".")
    assert getattr(import_module(module), name) is EngineGuard
    assert "VLLM_API_KEY" not in os.environ
