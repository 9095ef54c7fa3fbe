"""Requests that wait at the gateway while workers start, and what the operator is told of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from fulcrum.admission import Reject
from fulcrum.api.gateway import DemandReport, GatewayHold
from fulcrum.api.reasons import Reason
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.errors import RequestError, shutting_down, waking
from fulcrum.routing import Incoming, Route

_LOOK_SECONDS: Final = 0.05
"""How often a held request looks for a worker, times one more for each `_LOOKERS` of them."""
_LOOKERS: Final = 50
"""So all together look about 1,000 times a second at most: with no worker a look takes microseconds."""
_HEARTBEAT_SECONDS: Final = 10.0
"""Time between SSE comments of a held stream where the spec has no heartbeat: balancers cut after 30 s and more."""
_TOLD_SECONDS: Final = 10.0
"""How long the operator is told of a wake's first token: less than the shortest `balance.idleAfter`, so that what it
hears is of the wake that it knows."""
OUTCOMES: Final = ("served", "full", "timed_out", "left", "stopped", "refused")
"""What becomes of a request that finds no worker."""


class Hold:
    """Holds requests without a worker: a bounded number, each with a deadline."""

    def __init__(
        self,
        bounds: GatewayHold | None,
        *,
        admission: AdmissionControl,
        heartbeat_seconds: float | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`bounds`: None holds nothing."""
        self.places = 0 if bounds is None else bounds.max_requests
        """Requests that it holds at most; 0: it is not to be asked."""
        self._max_wait_seconds = 0.0 if bounds is None else bounds.max_wait_seconds
        self._admission = admission
        self._heartbeat_seconds = heartbeat_seconds or _HEARTBEAT_SECONDS
        self._loop = loop
        self._began_at = loop.time()
        self._asked_at = 0.0
        """When the last request ended; 0: none came yet."""
        self._in_progress = 0
        self._first_token_seconds: float | None = None
        self._woken_at = 0.0
        """When the last request that had been held ended."""
        self.held = 0
        """Requests that wait now."""
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.stopping = False
        """This gateway shuts down: what waits is better sent to another one."""

    def began(self) -> None:
        """A request came that could be read."""
        self._in_progress += 1

    def ended(self, exchange: Exchange) -> None:
        """It is over."""
        self._in_progress -= 1
        self._asked_at = self._loop.time()
        if exchange.woken and exchange.response.status == 200:
            first_token_at = exchange.first_token_at or self._asked_at  # an answer that comes as one
            seconds = first_token_at - exchange.started_at
            self._first_token_seconds = max(self._first_token_seconds or 0.0, seconds)
            self._woken_at = self._asked_at

    def report(self) -> DemandReport:
        """What the operator is told."""
        now = self._loop.time()
        idle_seconds = None
        if self._in_progress:
            idle_seconds = 0.0
        elif self._asked_at:
            idle_seconds = now - self._asked_at
        return DemandReport(
            held=self.held,
            up_seconds=now - self._began_at,
            idle_seconds=idle_seconds,
            first_token_seconds=self._first_token_seconds if now - self._woken_at <= _TOLD_SECONDS else None,
        )

    async def wait(self, exchange: Exchange, incoming: Incoming, *, streams: bool) -> Route:
        """Wait until a worker takes the request. Raises RequestError (503).

        No admission: a request that waited is not turned away for a queue that the waiting made.
        """
        if self.held >= self.places:
            self.outcomes["full"] += 1
            raise self._refused(incoming, f"Workers start, and this gateway already holds {self.places} requests.")
        if not self.held:
            self._first_token_seconds = None
        self.held += 1
        found: Route | None = None
        outcome = "left"
        now = self._loop.time()
        until = now + self._max_wait_seconds
        try:
            if streams:
                exchange.response.begin_heartbeat(self._loop, self._heartbeat_seconds)
            while found is None and now < until and not self.stopping:
                await asyncio.sleep(min(_LOOK_SECONDS * (1 + self.held / _LOOKERS), until - now))
                now = self._loop.time()
                found = self._admission.detour(incoming, frozenset(), now)
                if found is None and self._admission.is_hopeless(incoming):
                    outcome = "refused"
                    raise self._admission.refusal(incoming, Reject(Reason.NO_WORKER))
            outcome = "served" if found is not None else "stopped" if self.stopping else "timed_out"
        finally:
            self.held -= 1
            self.outcomes[outcome] += 1
        if found is None:
            if outcome == "stopped":
                raise shutting_down()
            raise self._refused(incoming, "Workers did not start in time (gateway.hold.maxWait).")
        exchange.woken = True
        return found

    def _refused(self, incoming: Incoming, message: str) -> RequestError:
        self._admission.core.refuse(incoming, Reject(Reason.WAKING))
        return waking(message)
