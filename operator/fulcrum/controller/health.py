"""The operator's own HTTP endpoints: `/healthz`, `/metrics` and, where it is asked for, the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from fulcrum.controller.metrics import Metrics


@asynccontextmanager
async def serve_health(host: str, port: int, metrics: Metrics, more: Sequence[web.RouteDef] = ()) -> AsyncIterator[int]:
    """Serve until the context ends; yields the port (0 asks for a free one)."""

    async def healthz(_: web.Request) -> web.Response:
        # Answering is the proof: this is the event loop that everything else runs on.
        return web.Response(text="ok\n")

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", page), *more])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, keepalive_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
