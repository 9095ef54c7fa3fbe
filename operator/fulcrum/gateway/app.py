"""The gateway: its parts put together, and its life from start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from fulcrum import __version__
from fulcrum.api.batch import KEY_HEADER, is_batch_path
from fulcrum.api.reasons import Reason
from fulcrum.api.record import PATH as RECORD_PATH
from fulcrum.api.serving_types import ModelTask
from fulcrum.api.telemetry_types import traces_url
from fulcrum.gateway.api_formats.error_object import ErrorForm, error_form
from fulcrum.gateway.api_keys import RELOAD_SECONDS, ApiKey, KeyRing
from fulcrum.gateway.config import Settings, served_model
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.hold import Hold
from fulcrum.gateway.dispatch.recorder import record_page, recorder_of
from fulcrum.gateway.dispatch.routes import Routes
from fulcrum.gateway.dispatch.serve import Inference
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.gauges import gauges
from fulcrum.gateway.http.budget import Budget
from fulcrum.gateway.http.clients import BACKLOG, drain, listen, sweep
from fulcrum.gateway.http.connection import ClientConnection
from fulcrum.gateway.http.cors import Cors
from fulcrum.gateway.http.internal_server import InternalServer, Page
from fulcrum.gateway.http.passage import Destination
from fulcrum.gateway.http.places import Places
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.slow_readers import SlowReaders
from fulcrum.gateway.known_labels import count_from_zero
from fulcrum.gateway.metrics.counts import CONTENT_TYPE, OPEN_METRICS, OPEN_METRICS_CONTENT_TYPE, Metrics
from fulcrum.gateway.metrics.slo import SloOutcome
from fulcrum.gateway.process import report_death, serve_until_signalled
from fulcrum.gateway.tracing.trace import KEPT_HEADERS, Attributes, Tracing
from fulcrum.gateway.workers.adapters import Adapters
from fulcrum.gateway.workers.load_poll import LoadPoller
from fulcrum.gateway.workers.prefix_sharing import SENT_PATH, PrefixSharing, prefix_seed
from fulcrum.gateway.workers.prewarm import Prewarmer
from fulcrum.gateway.workers.registry import KnownWorker, WorkerRegistry

logger = logging.getLogger(__name__)

_ARRIVING_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of all requests together, heads included, that are still arriving."""
_SWEEP_SECONDS: Final = 0.25


class Gateway:
    """One gateway process; `http.service.Service` for its connections."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self._loop = loop
        self.limits = settings.config.limits
        self.places: Places[ClientConnection] = Places(settings.max_connections)
        self.connections = self.places.open
        self.slow_readers = SlowReaders()
        self.response_budget = ResponseBudget()
        self.bodies: Budget[ClientConnection] = Budget(_ARRIVING_BYTES)
        self.closing = False
        self.admission = AdmissionControl(
            settings.config, prefix_seed=prefix_seed(settings.token), token=settings.token
        )
        self.batch_host: str | None = None
        """Address of the cluster's batch Pod; None: it is not ready."""
        self.cors = Cors(settings.config.cors_origins)
        self.tracing = _tracing(settings)
        self.kept_headers = self.admission.kept_headers | self.cors.kept_headers
        if self.tracing is not None:
            self.kept_headers |= KEPT_HEADERS
        self.metrics = Metrics(
            model=settings.config.served_name,
            labels=_labels(settings),
            class_names=self.admission.classes.names,
        )
        self.registry = WorkerRegistry(self.metrics, self.admission.cluster, self.response_budget, token=settings.token)
        unpriced = [pool.name for pool in settings.config.pools if pool.transfer is None]
        self.adapters = Adapters(self.registry, self.metrics, enabled=settings.config.adapters)
        served = served_model(settings.config, self.adapters)
        count_from_zero(self.metrics, self.admission.classes.names[self.admission.classes.rest], served.paths)
        self.poller = LoadPoller(self.registry, self.metrics, unpriced, adapters=self.adapters)
        self.recorder = recorder_of(settings.config, self.admission, settings.token, loop.time())
        """None: `spec.gateway.record` is Off."""
        self._prefixes = PrefixSharing(self.admission.cluster, self.metrics, self.response_budget, token=settings.token)
        self.gateways = 0
        """Gateways that share the traffic, this one included."""
        self.share(settings.config.replicas)
        self._routes = Routes(
            settings.config,
            served=served,
            admission=self.admission,
            adapters=self.adapters,
            cors=self.cors,
            not_ready=self.not_ready,
            refused=self.refused,
        )
        self.prewarmer = Prewarmer(self.registry, self.metrics, settings.config.served_name)
        self._watch_connected = False
        self._knows_workers = bool(settings.static_workers)
        self.port = settings.port
        self.inside_port = settings.inside_port
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._stop = asyncio.Event()
        self._inference = Inference(
            config=settings.config,
            served=served,
            admission=self.admission,
            registry=self.registry,
            metrics=self.metrics,
            loop=loop,
            access_log=settings.access_log,
            adapters=self.adapters,
            tracing=self.tracing,
            recorder=self.recorder,
        )
        self._inside = InternalServer(
            {
                "/metrics": self._metrics_page,
                "/demand": _json_page(self.hold.report),
                "/kv-pairs": _json_page(self.prewarmer.report),
                "/loads": _json_page(self.poller.report),
            },
            {SENT_PATH: self._prefixes.learn},
            {"/health": lambda: None, "/ready": self.not_ready},
            guarded={RECORD_PATH: lambda query: record_page(self.recorder, query, loop.time())},
            token=settings.token,
        )

    @property
    def hold(self) -> Hold:
        """What waits for workers to start."""
        return self._inference.hold

    # http.service.Service

    def authenticate(self, path: str, headers: Mapping[str, str]) -> ApiKey | None:
        return self.admission.authenticate(path, headers)

    def passes(self, path: str) -> bool:
        return self.settings.config.batch is not None and is_batch_path(path)

    def destination(self) -> Destination | None:
        batch = self.settings.config.batch
        host = self.batch_host if batch is None or batch.host is None else batch.host
        if batch is None or host is None:
            return None
        return Destination(host, batch.port, self.settings.token, KEY_HEADER)

    def answer(self, request: Request, response: Response) -> bool:
        return self._routes.answer(request, response)

    def serve(self, request: Request, response: Response) -> Coroutine[Any, Any, None]:
        return self._inference.serve(request, response)

    def error_form(self, path: str) -> ErrorForm:
        return error_form(path)

    def refused(self, error: RequestError) -> None:
        reason = error.reason.value if error.reason is not None else ""
        rest = self.admission.classes.names[self.admission.classes.rest]
        self.metrics.requests["", error.status.value, reason, rest] += 1
        if error.reason is Reason.OVERLOADED:
            # It was not read, but it is load all the same.
            counts = self.metrics.of_class(rest)
            counts.arrivals += 1
            if self.recorder is not None:
                self.recorder.unread(self._loop.time())
            if self._inference.has_slo:
                counts.slo[SloOutcome.REJECTED] += 1

    def not_ready(self) -> str | None:
        """Why this gateway should get no traffic; None when it should."""
        if self._stop.is_set():
            return "shutting down"
        # Workers may be away: 503 with Retry-After says more than a refused connection.
        return None if self._knows_workers else "the workers are not known yet"

    @property
    def watch_connected(self) -> bool:
        """Whether the Pod watch is up."""
        return self._watch_connected

    @watch_connected.setter
    def watch_connected(self, connected: bool) -> None:
        self._watch_connected = connected
        self._knows_workers = self._knows_workers or connected

    def share(self, gateways: int) -> None:
        """So many gateways, this one included, share the traffic and the limits of keys."""
        if gateways != self.gateways:
            logger.info("gateways_counted ready=%d before=%d", gateways, self.gateways)
        if gateways < self.gateways and self.recorder is not None:
            self.recorder.neighbour_left(self._loop.time())
        self.gateways = gateways
        self.poller.alone = gateways == 1
        self.admission.share(gateways, self._loop.time())

    def _metrics_page(self, accept: str) -> tuple[bytes, bytes]:
        """OpenMetrics, which has exemplars, only where there can be some."""
        if self.tracing is not None and OPEN_METRICS in accept:
            return OPEN_METRICS_CONTENT_TYPE, self.metrics.render(gauges(self), open_metrics=True)
        return CONTENT_TYPE, self.metrics.render(gauges(self))

    def meet(self, hosts: frozenset[str]) -> None:
        """The other ready gateways are at these addresses."""
        self._prefixes.meet(hosts)

    # Life.

    async def start(self) -> None:
        """Listen and begin to follow the workers."""
        settings = self.settings
        self.registry.joined = self.poller.joined
        if settings.prewarm and settings.config.task is ModelTask.GENERATE:  # a pooling model's workers move no KV
            self.registry.joined = self._joined
            self.poller.suspected = self.prewarmer.suspected
            self._spawn(self.prewarmer.run())
        if settings.static_workers:
            self.registry.replace(settings.static_workers)
        else:
            from fulcrum.gateway.workers.cluster_watch import watch_cluster
            from fulcrum.gateway.workers.watch import watch_workers

            self._spawn(watch_workers(self))
            self._spawn(watch_cluster(settings, self.admission.cluster.kv_routes.set, self.adapters.take))
        self._spawn(self._sweep())
        self._spawn(self.poller.run())
        self._spawn(self._prefixes.run())
        if self.admission.keys is not None:
            self._spawn(self._reload(self.admission.keys))
        listener = listen(settings.host, settings.port)
        self.port = listener.getsockname()[1]
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self, self._loop), sock=listener, backlog=BACKLOG
        )
        self.inside_port = await self._inside.start(settings.host, settings.inside_port)
        logger.info(
            "gateway_started host=%s port=%d inside=%d cluster=%s model=%s max_connections=%d",
            settings.host, self.port, self.inside_port, settings.config.cluster, settings.config.served_name,
            self.places.most,
        )  # fmt: skip

    async def stop(self) -> None:
        """Not ready; accept for a little longer; then finish what is under way, within the grace period."""
        self._stop.set()
        self.hold.stopping = True
        logger.info("gateway_stopping connections=%d", len(self.connections))
        self.closing = True
        await asyncio.sleep(self.settings.lame_duck_seconds)
        if self._server is not None:
            self._server.close()
        if left := await drain(self.places, self.settings.config.shutdown_grace_seconds):
            logger.warning("gateway_grace_over connections=%d", left)
        self._inside.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.tracing is not None:
            await self.tracing.stop()
        self._prefixes.close()
        self.registry.close()
        logger.info("gateway_stopped")

    def _joined(self, worker: KnownWorker) -> None:
        self.prewarmer.joined(worker)
        self.poller.joined(worker)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(report_death)
        self._tasks.append(task)

    async def _reload(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(keys.refresh)  # it reads a file for each key
            keys.share(self.gateways, self._loop.time())

    async def _sweep(self) -> None:
        limits = self.limits
        shortest_seconds = min(
            limits.header_timeout_seconds, limits.body_timeout_seconds, limits.request_timeout_seconds,
            limits.idle_timeout_seconds,
        )  # fmt: skip
        every_seconds = min(_SWEEP_SECONDS, shortest_seconds / 4)
        while True:
            await asyncio.sleep(every_seconds)
            now = self._loop.time()
            sweep(self.places, now)
            self.slow_readers.sweep(now, self.response_budget)
            self.registry.sweep(now)


def _json_page(report: Callable[[], msgspec.Struct]) -> Page:
    return lambda _: (b"application/json", msgspec.json.encode(report()))


def _labels(settings: Settings) -> dict[str, str]:
    """Labels of every series: with the gateway's own name, what several scrape jobs see of it counts once."""
    own = {"fulcrum_gateway": settings.pod_name} if settings.pod_name else {}
    return {"fulcrum_cluster": settings.config.cluster, "fulcrum_namespace": settings.namespace, **own}


def _tracing(settings: Settings) -> Tracing | None:
    """None where no traces are wanted: then nothing of the SDK is imported."""
    wanted = settings.config.tracing
    if wanted is None:
        return None
    from fulcrum.gateway.tracing.spans import OtlpTracing

    resource: Attributes = {
        "service.name": "fulcrum-gateway",
        "service.version": __version__,
        "k8s.namespace.name": settings.namespace,
        "fulcrum.cluster": settings.config.cluster,
    }
    if settings.pod_name:
        resource["service.instance.id"] = resource["k8s.pod.name"] = settings.pod_name
    return OtlpTracing(url=traces_url(wanted.endpoint), sampling_ratio=wanted.sampling_ratio, resource=resource)


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    await serve_until_signalled(Gateway(settings, asyncio.get_running_loop()), settings.max_connections)
