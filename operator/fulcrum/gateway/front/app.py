"""The front: its parts put together, and its life from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from fulcrum.api.front import FrontRoutes
from fulcrum.gateway.api_formats.error_object import ErrorForm, error_form
from fulcrum.gateway.api_keys import RELOAD_SECONDS, ApiKey
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.front.asked import hash_key
from fulcrum.gateway.front.clusters import Clusters
from fulcrum.gateway.front.forward import Forwarder
from fulcrum.gateway.front.heartbeat import Heartbeat
from fulcrum.gateway.front.metrics import FrontMetrics
from fulcrum.gateway.front.models import Models
from fulcrum.gateway.front.pages import Pages
from fulcrum.gateway.front.settings import FrontSettings
from fulcrum.gateway.http.budget import Budget
from fulcrum.gateway.http.clients import BACKLOG, drain, listen, sweep
from fulcrum.gateway.http.connection import ClientConnection
from fulcrum.gateway.http.cors import Cors
from fulcrum.gateway.http.internal_server import InternalServer
from fulcrum.gateway.http.passage import Destination
from fulcrum.gateway.http.places import Places
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.slow_readers import SlowReaders
from fulcrum.gateway.metrics.counts import CONTENT_TYPE
from fulcrum.gateway.process import report_death, serve_until_signalled

logger = logging.getLogger(__name__)

_ARRIVING_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of all requests together, heads included, that are still arriving."""
_SWEEP_SECONDS: Final = 0.25


class Front:
    """One front process; `http.service.Service` for its connections."""

    def __init__(self, settings: FrontSettings, loop: asyncio.AbstractEventLoop) -> None:
        config = settings.config
        self.settings = settings
        self._loop = loop
        self.limits = config.limits
        self.places: Places[ClientConnection] = Places(settings.max_connections)
        self.slow_readers = SlowReaders()
        self.response_budget = ResponseBudget()
        self.bodies: Budget[ClientConnection] = Budget(_ARRIVING_BYTES)
        self.closing = False
        self.cors = Cors(config.cors_origins)
        self._models = Models()
        self._clusters = Clusters(self.response_budget)
        self.kept_headers = self._clusters.kept_headers | self.cors.kept_headers
        own = {"fulcrum_gateway": settings.pod_name} if settings.pod_name else {}
        self.metrics = FrontMetrics({"fulcrum_front": config.name, "fulcrum_namespace": settings.namespace, **own})
        self._pages = Pages(self._models, self.cors, self.not_ready)
        self._forwarder = Forwarder(
            self._models,
            self._clusters,
            self.metrics,
            loop,
            key=hash_key(settings.namespace, config.name),
            timeout_seconds=config.limits.request_timeout_seconds,
            most_clients=lambda: self.places.most,
        )
        self._knows_models = False
        self.port = settings.port
        self.inside_port = settings.inside_port
        self._inside = InternalServer(
            {"/metrics": lambda _: (CONTENT_TYPE, self.metrics.render())},
            probes={"/health": lambda: None, "/ready": self.not_ready},
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    # http.service.Service

    def authenticate(self, path: str, headers: Mapping[str, str]) -> ApiKey | None:
        """Which keys a request needs depends on its model, which its body says."""
        return None

    def passes(self, path: str) -> bool:
        return False

    def destination(self) -> Destination | None:
        return None

    def answer(self, request: Request, response: Response) -> bool:
        return self._pages.answer(request, response)

    def serve(self, request: Request, response: Response) -> Coroutine[Any, Any, None]:
        return self._forwarder.serve(request, response)

    def error_form(self, path: str) -> ErrorForm:
        return error_form(path)

    def refused(self, error: RequestError) -> None:
        self.metrics.requests["", "", error.status.value] += 1

    def not_ready(self) -> str | None:
        """Why this front should get no traffic; None when it should."""
        if self.closing:
            return "shutting down"
        return None if self._knows_models else "the models are not known yet"

    def change(self, routes: FrontRoutes) -> None:
        """These are the models and clusters from now on; what was begun goes on as it began."""
        other_headers = self._clusters.change(routes.clusters)
        self._models.change(routes, self._loop.time())
        self.metrics.models = len(self._models)
        self._knows_models = True
        if other_headers:
            self.kept_headers = self._clusters.kept_headers | self.cors.kept_headers
            # A connection reads the headers that it was made for; an idle one can be made anew.
            for connection in [connection for connection in self.places.open if connection.idle]:
                connection.close()
        logger.info("front_routes_changed models=%d clusters=%d", len(routes.models), len(routes.clusters))

    # Life.

    async def start(self) -> None:
        """Listen and begin to follow the models."""
        settings = self.settings
        if settings.config.routes is not None:
            self.change(settings.config.routes)
        else:
            from fulcrum.gateway.front.object_watch import watch_object

            self._spawn(watch_object(settings, self.change))
        self._spawn(self._sweep())
        self._spawn(self._reload())
        self._spawn(Heartbeat(self._clusters, self._loop).run())
        listener = listen(settings.host, settings.port)
        self.port = listener.getsockname()[1]
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self, self._loop), sock=listener, backlog=BACKLOG
        )
        self.inside_port = await self._inside.start(settings.host, settings.inside_port)
        logger.info(
            "front_started host=%s port=%d inside=%d name=%s", settings.host, self.port, self.inside_port,
            settings.config.name,
        )  # fmt: skip

    async def stop(self) -> None:
        """Not ready; accept for a little longer; then finish what is under way, within the grace period."""
        self.closing = True
        logger.info("front_stopping connections=%d", len(self.places.open))
        await asyncio.sleep(self.settings.lame_duck_seconds)
        if self._server is not None:
            self._server.close()
        if left := await drain(self.places, self.settings.config.shutdown_grace_seconds):
            logger.warning("front_grace_over connections=%d", left)
        self._inside.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._clusters.close()
        logger.info("front_stopped")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(report_death)
        self._tasks.append(task)

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(self._models.refresh_keys)  # it reads a file for each key
            self._models.share_keys(self._loop.time())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._loop.time()
            sweep(self.places, now)
            self.slow_readers.sweep(now, self.response_budget)
            self._clusters.sweep(now)


async def run_front(settings: FrontSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    await serve_until_signalled(Front(settings, asyncio.get_running_loop()), settings.max_connections)
