"""`--chaos SEED`: what clients of a large, busy cluster live with every day, here on purpose and bounded.

Watch events come late, watches end early (some as a broken connection), and history is compacted so that resuming gives
410. Requests are answered with 409, 429 or 500, the last also after the write has been done. Requests of administrators
(`system:masters`: you, kubelet, controllers) get no errors; their watches are late and broken, too.

The same seed gives the same sequence of decisions; which request meets which one depends on the order of requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.authentication import MASTERS, User
from fulcrum_local.apiserver.errors import ApiError
from fulcrum_local.apiserver.request import Target
from fulcrum_local.apiserver.store import Store

logger = logging.getLogger(__name__)
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_CHANGES: Final = frozenset({"update", "patch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRates:
    """How bad it gets. Shares are of requests or of batches of events."""

    conflict: float = 0.12
    """409, of updates and patches."""
    throttled: float = 0.03
    """429 with `Retry-After: 1`."""
    failed: float = 0.03
    """500 before anything is done."""
    failed_after: float = 0.03
    """500 after a write has been done, as when the store's answer is late."""
    most_in_a_row: int = 3
    """Errors that one client gets one after the other; then one request goes through."""
    late: float = 0.2
    """Batches of watch events that are held back."""
    late_seconds: tuple[float, float] = (0.05, 1.5)
    watch_seconds: tuple[float, float] = (3.0, 30.0)
    """Life of a watch."""
    broken: float = 0.3
    """Watches that end as a broken connection and not in good order."""
    compaction_seconds: tuple[float, float] = (5.0, 20.0)
    """Between two compactions of the history of all resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error for one request; `after` means that the request is carried out first."""

    error: ApiError
    after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFate:
    """When a watch ends, and whether in good order."""

    lifetime_seconds: float
    broken: bool


class Chaos:
    """Decides, by a seed, what goes wrong next."""

    def __init__(self, seed: int, rates: ChaosRates | None = None) -> None:
        self._rates = rates or ChaosRates()
        # One sequence for each concern, so that more watches do not change what requests meet.
        self._requests, self._watches, self._delays, self._compactions = (
            random.Random(f"{seed}/{concern}")  # noqa: S311 - not a secret
            for concern in ("requests", "watches", "delays", "compactions")
        )
        self._in_a_row: Counter[str] = Counter()

    def fault(self, target: Target, user: User) -> Fault | None:
        """The error that a request is to be answered with, or None."""
        if MASTERS in user.groups or not target.is_resource:
            return None
        fault = self._drawn(target)
        if fault is None or self._in_a_row[user.name] >= self._rates.most_in_a_row:
            self._in_a_row[user.name] = 0
            return None
        self._in_a_row[user.name] += 1
        return fault

    def _drawn(self, target: Target) -> Fault | None:
        rates, point = self._rates, self._requests.random()
        if point < rates.throttled:
            text = "the server has received too many requests and has asked us to try again later"
            return Fault(error=ApiError(429, text, retry_after_seconds=1))
        point -= rates.throttled
        if point < rates.failed:
            return Fault(error=ApiError(500, "Internal error occurred: chaos"))
        point -= rates.failed
        if point < rates.failed_after:
            if target.verb not in _WRITES:
                return None
            return Fault(error=ApiError(500, "etcdserver: request timed out"), after=True)
        point -= rates.failed_after
        if point < rates.conflict and target.verb in _CHANGES:
            return Fault(error=errors.conflict(target.group, target.resource, target.name, errors.OBJECT_MODIFIED))
        return None

    def watch_fate(self) -> WatchFate:
        """How a watch that begins now will end."""
        lifetime = self._watches.uniform(*self._rates.watch_seconds)
        return WatchFate(lifetime_seconds=lifetime, broken=self._watches.random() < self._rates.broken)

    def delay_seconds(self) -> float:
        """How long the next batch of events of some watch is held back; mostly 0."""
        late = self._delays.random() < self._rates.late
        seconds = self._delays.uniform(*self._rates.late_seconds)
        return seconds if late else 0.0

    async def compact(self, store: Store) -> None:
        """Forget the history of all resources from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._compactions.uniform(*self._rates.compaction_seconds))
            store.compact()
            logger.info("chaos_compacted version=%d", store.version)
