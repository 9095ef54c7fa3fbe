"""A request under which two engines crashed is not tried on a third: it is more likely to be the cause than not."""

from __future__ import annotations

import asyncio
from typing import Final

from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.errors import engines_crashed
from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import WorkerRegistry

_CRASHES: Final = 2
_REPORT_SECONDS: Final = 3.0
"""Longest wait for the report of how a worker ended: kubelets write it within one to two seconds."""
_POLL_SECONDS: Final = 0.05


class Crashes:
    """Engines that crashed with a request under way of which no token was sent.

    A connection that broke says nothing by itself: the Pod may have been deleted, or its node lost. The agent's exit
    code, which the Pod's status has, says that the engine ended by itself.
    """

    def __init__(self, registry: WorkerRegistry, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._metrics = metrics
        self._loop = loop

    def note(self, exchange: Exchange, failed: LegFailedError) -> None:
        """A leg failed."""
        if failed.failure is Failure.RESET and not exchange.response.started:
            exchange.broken.append(failed.worker)

    async def check(self, exchange: Exchange) -> None:
        """Raises RequestError (502) if two engines have crashed; waits until that is known, if it can be."""
        if len(exchange.broken) < _CRASHES or not self._registry.learns_ends:
            return
        until = min(self._loop.time() + _REPORT_SECONDS, exchange.deadline)
        while True:
            known = [self._registry.crashed(worker) for worker in exchange.broken]
            if known.count(True) >= _CRASHES:
                self._metrics.spared["two_crashed"] += 1
                raise engines_crashed()
            if known.count(True) + known.count(None) < _CRASHES or self._loop.time() >= until:
                return
            await asyncio.sleep(_POLL_SECONDS)
