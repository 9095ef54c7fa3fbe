"""The operator process: election, event intake, queue, reconciler and health endpoints in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Final

import kopf

from fulcrum.controller.handlers import make_registry, make_settings
from fulcrum.controller.health import serve_health
from fulcrum.controller.kube import Kube
from fulcrum.controller.leader import Election, Leadership
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.outlook import ClusterKey, OutlookKeeper
from fulcrum.controller.queue import KeyedQueue
from fulcrum.controller.reconcile import Reconciler
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0


async def run_operator(
    *, identity: str, namespaces: Sequence[str], health_host: str, health_port: int, election: Election | None
) -> None:
    """Run until SIGTERM or SIGINT. No namespaces means all of them; no election, that nobody else acts.

    `identity` is what events name as their author.
    Errors: LeaseLostError when another operator leads, or may soon; nothing was written after that.
    """
    metrics = Metrics()
    stop = asyncio.Event()
    async with (
        Kube.from_environment(metrics) as kube,
        Agents() as agents,
        serve_health(health_host, health_port, metrics) as port,
    ):
        _on_signals(stop.set)
        logger.info("operator_started namespaces=%s health=%s:%d", ",".join(namespaces) or "*", health_host, port)
        if election is None:
            metrics.leads(leads=True)
            await _Acting(kube, agents, metrics, identity, namespaces).run(stop)
        else:
            leadership = Leadership(kube, metrics, election)
            acting = _Acting(kube.fenced(leadership.leads), agents, metrics, identity, namespaces)
            await _act_while_leading(leadership, lambda: acting.run(stop), stop)
        logger.info("operator_stopped")


async def _act_while_leading(
    leadership: Leadership, act: Callable[[], Coroutine[None, None, None]], stop: asyncio.Event
) -> None:
    stopping = asyncio.create_task(stop.wait(), name="stop")
    acquiring = asyncio.create_task(leadership.acquire(), name="acquire")
    await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not acquiring.done():
        await _cancelled(acquiring)
        return
    acquiring.result()
    holding = asyncio.create_task(leadership.hold(), name="hold")
    acting = asyncio.create_task(act(), name="act")
    await asyncio.wait({holding, acting}, return_when=asyncio.FIRST_COMPLETED)
    if holding.done():
        # What is under way is cut off, not finished: the next leader decides anew from what it sees.
        await _cancelled(acting)
        holding.result()
    await _cancelled(holding)
    await leadership.release()
    await acting


class _Acting:
    """Event intake, queue and reconciler of a process that acts."""

    def __init__(self, kube: Kube, agents: Agents, metrics: Metrics, identity: str, namespaces: Sequence[str]) -> None:
        self._namespaces = list(namespaces)
        self._outlooks = OutlookKeeper(agents, metrics, wake=self._wake)
        reconciler = Reconciler(kube, agents, self._outlooks, metrics, identity=identity, now=_now)
        self._queue: KeyedQueue[ClusterKey] = KeyedQueue(reconciler.reconcile, jitter=random.random)

    def _wake(self, key: ClusterKey) -> None:
        self._queue.add(key)

    async def run(self, stop: asyncio.Event) -> None:
        """Reconcile until `stop`; what was begun is finished then, and cut off when this is cancelled."""
        async with self._outlooks:
            await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> None:
        working = asyncio.create_task(self._queue.run(), name="queue")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.sleep(0)
        # kopf takes every task that is younger than itself for its own, and waits for it at the end.
        ours = asyncio.all_tasks()
        roots = await kopf.spawn_tasks(
            registry=make_registry(self._queue.add),
            settings=make_settings(all_namespaces=not self._namespaces),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )
        # kopf has put its own handlers there, which would end the intake before what was taken in is worked off.
        _on_signals(stop.set)
        listening = asyncio.create_task(kopf.run_tasks(roots, ignored=ours), name="kopf")
        try:
            # Neither ends by itself but by a defect, which must not go unseen.
            await asyncio.wait({working, listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # What was begun is finished: a decision without its event and status would be hard to understand.
            self._queue.stop()
            await asyncio.wait({working}, timeout=STOP_SECONDS)
            await self._outlooks.stop()
        finally:
            for task in (working, listening, stopping):
                task.cancel()
            for result in await asyncio.gather(working, listening, stopping, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                    raise result


def _now() -> datetime:
    return datetime.now(UTC)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _on_signals(call: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)
