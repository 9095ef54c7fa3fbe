"""Who is to blame for a leg that failed: its worker or the request; and whether the request is tried elsewhere.

| failure of a leg | its worker | its request |
|---|---|---|
| `DOUBTFUL`: the engine lives, and fails at this one | is in doubt until another worker serves the request | goes on |
| it has no connection, or refuses the token | is avoided for a while | goes on, unless two engines crashed under it |
| nothing came in time; it computed, or answered others | was only late | goes on |
| nothing came in time; it computed nothing either | is avoided for a while | goes on |
| it went on with a stream in another way (`DIVERGED`) | is as good as before | fails |

A request goes on with another worker until `MAX_ATTEMPTS` in a row made no token, or `_MOST_ATTEMPTS` were made.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fulcrum.gateway.dispatch.crashes import Crashes
from fulcrum.gateway.dispatch.exchange import MAX_ATTEMPTS, Exchange
from fulcrum.gateway.dispatch.leg_deadlines import LegDeadlines
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.errors import RequestError, engine_error, upstream_failed
from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import KnownRank, WorkerRegistry

logger = logging.getLogger(__name__)

DOUBTFUL: Final = frozenset((Failure.ERROR_STATUS, Failure.PROTOCOL, Failure.TRUNCATED))
"""Failures of an engine that lives and answers other requests: the request may be at fault. Another worker shows it."""
_MOST_ATTEMPTS: Final = 6
"""Attempts in all: a request that kills its workers must not go through the whole cluster."""
_MANY_DOUBTS: Final = 10
"""Failures in a row from which on the worker is at fault, not the requests."""


class Blame:
    """Judges failures."""

    def __init__(
        self,
        leg_deadlines: LegDeadlines,
        *,
        registry: WorkerRegistry,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._leg_deadlines = leg_deadlines
        self._registry = registry
        self._metrics = metrics
        self._loop = loop
        self._crashes = Crashes(registry, metrics, loop)

    def failed(self, rank: KnownRank, leg: str, failure: Failure, *, late: bool = False) -> LegFailedError:
        """A leg failed: hold it against its worker, if that is surely at fault. `late`: it computed meanwhile."""
        if failure in DOUBTFUL:
            rank.state.health.breaker.doubted()
        elif not late and failure is not Failure.DIVERGED:
            self._registry.failed(rank, self._loop.time())
        self._metrics.legs[leg, failure.value] += 1
        return LegFailedError(rank, leg, failure)

    def try_elsewhere(self, exchange: Exchange, failed: LegFailedError) -> None:
        """The attempt is over. Raises RequestError unless another one may be made."""
        logger.warning(
            "leg_failed id=%s attempt=%d cause=%s", exchange.response.request_id.decode(), exchange.attempts, failed
        )
        exchange.fruitless += 1
        if failed.failure is not Failure.CONNECT or failed.leg != "decode":
            exchange.held = None  # the worker may have begun to pull, and what is pulled is freed
        if failed.failure in DOUBTFUL:
            exchange.accused.append(failed)
        if failed.failure is Failure.STALL:
            self._leg_deadlines.lost()
        if exchange.fruitless >= MAX_ATTEMPTS or exchange.attempts >= _MOST_ATTEMPTS:
            raise self.gave_up(exchange, "Several workers failed to serve the request. Retry it.") from failed
        self._metrics.retries[failed.leg] += 1
        self._crashes.note(exchange, failed)

    async def check_crashes(self, exchange: Exchange) -> None:
        """Raises RequestError where the request has crashed engines; waits until that is known, if it can be."""
        await self._crashes.check(exchange)

    def gave_up(self, exchange: Exchange, message: str) -> RequestError:
        """The error of a request that found no worker."""
        if exchange.response.started:
            self._metrics.resumes["failed"] += 1
        own_errors = [failed for failed in exchange.accused if failed.failure is Failure.ERROR_STATUS]
        if len(own_errors) == exchange.attempts and any(_serves_others(failed.rank) for failed in own_errors):
            return engine_error()
        return upstream_failed(message)

    def convict(self, exchange: Exchange, leg: str = "") -> None:
        """Another worker serves `exchange` (or its `leg`): the workers that failed it are at fault, not the request."""
        guilty = [failed for failed in exchange.accused if leg in ("", failed.leg)]
        exchange.accused = [failed for failed in exchange.accused if failed not in guilty]
        for failed in guilty:
            self._registry.failed(failed.rank, self._loop.time())

    def convict_when_begun(self, exchange: Exchange) -> None:
        """Do so with the first bytes of the stream that comes next."""
        response, on_begin = exchange.response, exchange.response.on_begin

        def begun() -> None:
            if on_begin is not None:
                on_begin()
            self.convict(exchange)

        response.on_begin = begun


def _serves_others(rank: KnownRank) -> bool:
    breaker = rank.state.health.breaker
    return breaker.answers > 0 and breaker.doubts < _MANY_DOUBTS
