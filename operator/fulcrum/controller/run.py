"""The operator process: event intake, queue, reconciler and health endpoints in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import kopf

from fulcrum.controller.handlers import make_registry, make_settings
from fulcrum.controller.health import serve_health
from fulcrum.controller.kube import Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.queue import KeyedQueue
from fulcrum.controller.reconcile import ClusterKey, Reconciler
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0


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
        working = asyncio.create_task(queue.run(), name="queue")
        # kopf takes every task that is younger than itself for its own, and waits for it at the end.
        await asyncio.sleep(0)
        listening = asyncio.create_task(
            kopf.operator(
                registry=make_registry(queue.add),
                settings=make_settings(all_namespaces=not namespaces),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=list(namespaces),
            ),
            name="kopf",
        )
        logger.info("operator_started namespaces=%s health=%s:%d", ",".join(namespaces) or "*", health_host, port)
        try:
            # Neither ends by itself: kopf ends on a signal, and the queue only by a defect, which must not go unseen.
            await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # What was begun is finished: a decision without its event and status would be hard to understand.
            queue.stop()
            await asyncio.wait({working}, timeout=STOP_SECONDS)
            for task in (listening, working):
                task.cancel()
            for result in await asyncio.gather(listening, working, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                    raise result
            logger.info("operator_stopped")
