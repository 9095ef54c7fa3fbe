"""The operator process: election, event intake, queue, reconciler and health endpoints in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from fulcrum.controller.caches import Caches
from fulcrum.controller.cluster_watches import ClusterKey, ClusterWatches
from fulcrum.controller.dashboard_source import WAITING, OperatorSource
from fulcrum.controller.fronts import Fronts
from fulcrum.controller.health import serve_health
from fulcrum.controller.installation import Installation
from fulcrum.controller.intake import Intake
from fulcrum.controller.kube import SECRET, Kube
from fulcrum.controller.leader import Election, Leadership
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.queue import KeyedQueue, Wake
from fulcrum.controller.reconcile import Reconciler
from fulcrum.controller.rehearsals import Rehearsals
from fulcrum.dashboard import Board, routes
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0


async def run_operator(
    *,
    identity: str,
    installation: Installation,
    namespaces: Sequence[str],
    health_host: str,
    health_port: int,
    election: Election | None,
    dashboard: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT. No namespaces means all of them; no election, that no other operator acts.

    `identity` is what events name as their author. `dashboard` serves the page, without authentication, beside
    health and metrics.
    Errors: LeaseLostError when another operator leads, or may soon; nothing was written after that.
    """
    metrics = Metrics()
    stop = asyncio.Event()
    board = Board(origin=f"operator {identity}", waiting=WAITING) if dashboard else None
    async with (
        Kube.from_environment(metrics) as kube,
        Agents() as agents,
        serve_health(health_host, health_port, metrics, routes(board) if board is not None else ()) as port,
    ):

        def acting(client: Kube) -> _Acting:
            return _Acting(
                client,
                agents,
                metrics,
                identity=identity,
                installation=installation,
                namespaces=namespaces,
                board=board,
            )

        _on_signals(stop.set)
        logger.info("operator_started namespaces=%s health=%s:%d", ",".join(namespaces) or "*", health_host, port)
        if election is None:
            metrics.leads(leads=True)
            await acting(kube).run(stop)
        else:
            leadership = Leadership(kube, metrics, election)
            leading = acting(kube.fenced(leadership.leads))
            await _act_while_leading(leadership, lambda: leading.run(stop), stop)
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

    def __init__(
        self,
        kube: Kube,
        agents: Agents,
        metrics: Metrics,
        *,
        identity: str,
        installation: Installation,
        namespaces: Sequence[str],
        board: Board | None,
    ) -> None:
        self._namespaces = list(namespaces)
        self._api = kube.api
        self._board = board
        self._watches = ClusterWatches(
            agents, metrics, partial(kube.get, SECRET), wake=self._measured, looked=self._looked
        )
        self._caches = Caches(kube.api, self._namespaces, changed=self._changed)
        kube.note, kube.note_deletion = self._caches.record, self._caches.record_deletion
        self._rehearsals = Rehearsals(metrics, wake=self._answered, now=_now)
        self._reconciler = Reconciler(
            kube,
            self._caches,
            agents,
            self._watches,
            metrics,
            rehearsals=self._rehearsals,
            identity=identity,
            installation=installation,
            now=_now,
        )
        self._fronts = Fronts(
            kube, self._caches, self._namespaces, identity=identity, installation=installation, now=_now
        )
        self._queue: KeyedQueue[ClusterKey] = KeyedQueue(self._reconcile, jitter=random.random)

    def _changed(self, key: ClusterKey, wake: Wake = Wake.EVENT) -> None:
        """Let clusters that serve go first: 1,000 new ones, good or bad, do not delay a change of one that serves."""
        if not self._caches.complete(key[0]):
            wake = Wake.TIMER  # what the first lists name need not have changed
        elif wake is Wake.EVENT and not self._reconciler.serves(key):
            wake = Wake.NEW
        self._queue.add(key, wake)
        self._fronts.cluster_changed(key)

    def _measured(self, key: ClusterKey) -> None:
        self._queue.add(key, Wake.TIMER)

    def _looked(self, key: ClusterKey) -> None:
        self._queue.add(key, Wake.LOOK)

    def _answered(self, key: ClusterKey) -> None:
        """Let a cluster act on the answer to its question at once: requests are late there."""
        self._queue.add(key, Wake.EVENT if self._reconciler.serves(key) else Wake.NEW)

    async def _reconcile(self, key: ClusterKey) -> float | None:
        # Half a view would make again what is there already.
        await self._caches.synced(key[0])
        return await self._reconciler.reconcile(key)

    async def run(self, stop: asyncio.Event) -> None:
        """Reconcile until `stop`; what was begun is finished then, and cut off when this is cancelled."""
        async with self._watches, self._rehearsals:
            await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> None:
        working = asyncio.create_task(self._queue.run(), name="queue")
        watching = asyncio.create_task(self._caches.run(), name="caches")
        showing = []
        if self._board is not None:
            source = OperatorSource(self._api, self._caches, self._watches, self._namespaces)
            showing = [asyncio.create_task(source.show(self._board), name="dashboard")]
        stopping = asyncio.create_task(stop.wait(), name="stop")
        listening = asyncio.create_task(Intake(self._namespaces, self._changed).run(), name="intake")
        fronting = asyncio.create_task(self._fronts.run(stop), name="fronts")
        tasks = {working, watching, listening, stopping, fronting}
        try:
            # None of them ends by itself but by a defect, which must not go unseen.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # What was begun is finished: a decision without its event and status would be hard to understand.
            self._queue.stop()
            await asyncio.wait({working, fronting}, timeout=STOP_SECONDS)
            await self._watches.stop()
        finally:
            for task in (*tasks, *showing):
                task.cancel()
            for result in await asyncio.gather(*tasks, *showing, return_exceptions=True):
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
