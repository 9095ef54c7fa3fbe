"""The kubelet's HTTPS side: container logs for `kubectl logs`, on the node's loopback address only.

As a kubelet's, its certificate is its own and API servers do not check it, unless they are told to.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from fulcrum_local.certificates import server_context
from fulcrum_local.kubelet.container import Container
from fulcrum_local.kubelet.logs import LogOptions, read
from fulcrum_local.kubelet.pod import PodWorker

Find = Callable[[str, str], PodWorker | None]
"""(namespace, Pod name) -> its worker."""
Check = Callable[[web.Request], Awaitable[None]]
"""Raises an HTTP error for a caller that may not use this server."""


class LogServer:
    """Serves `GET /containerLogs/{namespace}/{pod}/{container}` to callers that `check` admits, and `GET /healthz`."""

    def __init__(self, find: Find, check: Check) -> None:
        self._find = find
        self._check = check
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, certificate: Path, port: int = 0) -> int:
        """Listen; returns the port. `certificate` is a file with key and certificate. Errors: OSError."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/healthz", self._healthz)
        # A log that is followed never ends by itself: do not wait for it when the kubelet stops.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=server_context(certificate, certificate))
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        await self._check(request)
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        worker = self._find(namespace, name)
        container = worker.find(request.match_info["container"]) if worker is not None else None
        if container is None:
            raise web.HTTPNotFound(text=f"no container {request.match_info['container']} in pod {namespace}/{name}")
        previous = _flag(request, "previous")
        directory = container.log_directory(previous=previous)
        if directory is None:
            which = "previous terminated container" if previous else "container"
            state = container.waiting.reason if container.waiting is not None else "not started"
            raise web.HTTPBadRequest(text=f'{which} "{container.name}" in pod "{name}" has no log ({state})')
        try:
            options = _options(request, previous=previous)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        async for chunk in read(directory, options, ended=_ended(container)):
            await response.write(chunk)
        await response.write_eof()
        return response


def _ended(container: Container) -> Callable[[], bool]:
    """Whether the run that is read now is over: another run, or none, is a reason to end the stream."""
    first = container.running
    return lambda: container.running is None or container.running is not first


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("true", "1")


def _options(request: web.Request, *, previous: bool) -> LogOptions:
    query = request.query
    since: dt.datetime | None = None
    if query.get("sinceSeconds"):
        since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(query["sinceSeconds"]))
    elif query.get("sinceTime"):
        since = dt.datetime.fromisoformat(query["sinceTime"])
    return LogOptions(
        tail_lines=int(query["tailLines"]) if query.get("tailLines") else None,
        since=since,
        limit_bytes=int(query["limitBytes"]) if query.get("limitBytes") else None,
        timestamps=_flag(request, "timestamps"),
        follow=_flag(request, "follow") and not previous,
    )
