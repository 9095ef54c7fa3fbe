"""The operator process: event intake, queue, reconciler and health endpoints in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime

import kopf

from fulcrum.controller.handlers import make_registry, make_settings
from fulcrum.controller.health import serve_health
from fulcrum.controller.kube import Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.queue import KeyedQueue
from fulcrum.controller.reconcile import ClusterKey, Reconciler
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)


async def run_operator(*, namespaces: Sequence[str], health_host: str, health_port: int) -> None:
    """Run until SIGTERM or SIGINT. No namespaces means all of them."""
    metrics = Metrics()
    async with (
        Kube.from_environment(metrics) as kube,
        Agents() as agents,
        serve_health(health_host, health_port, metrics) as port,
    ):
        reconciler = Reconciler(kube, agents, metrics, now=lambda: datetime.now(UTC))
        queue: KeyedQueue[ClusterKey] = KeyedQueue(reconciler.reconcile, jitter=random.random)
        stop = asyncio.Event()
        # kopf takes every task that is younger than itself for its own, so the queue comes first.
        working = asyncio.create_task(queue.run(), name="queue")
        working.add_done_callback(lambda _: stop.set())
        logger.info("operator_started namespaces=%s health=%s:%d", ",".join(namespaces) or "*", health_host, port)
        try:
            await kopf.operator(
                registry=make_registry(queue.add),
                settings=make_settings(all_namespaces=not namespaces),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=list(namespaces),
                stop_flag=stop,
            )
        finally:
            ended_by_itself = working.done()
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            logger.info("operator_stopped unexpected=%s", str(ended_by_itself).lower())
