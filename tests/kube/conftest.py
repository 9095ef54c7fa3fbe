"""An HTTP server that a test scripts: a real API server cannot be made to misbehave on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from fulcrum.kube import Api, Json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers every request by `handler`; keeps what was asked."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.tokens: list[str] = []
        self.handler: Handler = _absent

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.tokens.append(request.headers.get("Authorization", ""))
        self.requests.append((request.method, request.path, dict(request.query), json.loads(body) if body else None))
        return await self.handler(request)

    def write_kubeconfig(self, port: int, token: str) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))


async def _absent(_: web.Request) -> web.StreamResponse:
    return status(404, "NotFound", "not found")


def status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


def pod(name: str, version: int, **metadata: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": str(version), **metadata}
    }


def page(version: int, *items: Json, continue_: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version), "continue": continue_}, "items": items})


async def events(request: web.Request, *parts: bytes, hold: asyncio.Event | None = None) -> web.StreamResponse:
    """A watch that sends `parts` one by one, and ends when `hold` is set (or at once)."""
    response = web.StreamResponse()
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(0.01)
    if hold is not None:
        await hold.wait()
    return response


def event(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    scripted = Server(tmp_path)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    scripted.write_kubeconfig(port, "first")
    yield scripted
    await runner.cleanup()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    client = Api(server.kubeconfig, timeout_seconds=5)
    yield client
    await client.close()
