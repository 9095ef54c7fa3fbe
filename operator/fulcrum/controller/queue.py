"""A queue of keys: each key at most once in it, at most once in work, again later on demand, slower after failures.

A change of what serves is worked on before what is new, that before what is due by the clock, and that before a look at
what is calm. None keeps another waiting for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF_SECONDS: Final = 0.2
LAST_BACKOFF_SECONDS: Final = 15.0
SPREAD_FROM_SECONDS: Final = 60.0
SPREAD: Final = 0.1
"""Long waits are shortened by up to this share: a fleet that was first seen together must not be due together."""


OVERTAKEN_MOST: Final = 4
"""Keys that go before one of a later kind, while both wait."""
KEPT_FOR_EVENTS: Final = 2
"""Workers of the queue that take changes only: those do not wait for slow answers to other ticks."""


class Wake(IntEnum):
    """What made a key due; the lower one goes first."""

    EVENT = 0
    """Something changed."""
    NEW = 1
    """Something changed of what does not serve yet: much of it may come at once."""
    TIMER = 2
    """Time passed: a resync, a retry, a poll, a measurement, an object in a list that need not have changed."""
    LOOK = 3
    """The load was read where nothing is expected to follow from it: those of which something is go first."""


@dataclass(slots=True)
class _State:
    waiting: Wake | None = None
    """The kind of wake that it waits for."""
    running: bool = False
    again: Wake | None = None
    """What was added while it was in work."""
    failures: int = 0
    timer: asyncio.TimerHandle | None = None


class KeyedQueue(Generic[Key]):
    """Runs `process(key)` for added keys.

    `process` returns seconds until the key is due again, or None to forget it. `jitter` returns 0 to 1; back-off is
    stretched by it, and long waits are shortened, so that keys do not come back together. At most `workers` keys are in
    work at once.
    """

    def __init__(
        self,
        process: Callable[[Key], Awaitable[float | None]],
        *,
        jitter: Callable[[], float],
        workers: int = 8,
    ) -> None:
        self._process = process
        self._jitter = jitter
        self._workers = workers
        self._states: dict[Key, _State] = {}
        self._waiting_keys: dict[Wake, OrderedDict[Key, None]] = {wake: OrderedDict() for wake in Wake}
        self._in_work = dict.fromkeys(Wake, 0)
        self._overtaken = dict.fromkeys(Wake, 0)
        """How many keys of earlier kinds have gone first while one of this kind waited."""
        self._news = asyncio.Event()
        """Something may begin now, or `run` is to end."""
        self._stopping = False

    def add(self, key: Key, wake: Wake = Wake.EVENT) -> None:
        """Make a key due now. One that is due already keeps its place, but a change moves it up."""
        state = self._states.setdefault(key, _State())
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        if state.running:
            state.again = wake if state.again is None else min(state.again, wake)
        elif state.waiting is None or wake < state.waiting:
            if state.waiting is not None:
                del self._waiting_keys[state.waiting][key]
            state.waiting = wake
            self._waiting_keys[wake][key] = None
            self._news.set()

    def keys(self) -> tuple[Key, ...]:
        """Every key that is due, in work, or to come."""
        return tuple(self._states)

    def stop(self) -> None:
        """Begin nothing more; `run` returns when what is in work is done."""
        self._stopping = True
        self._news.set()

    async def run(self) -> None:
        """Work until stopped or cancelled."""
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                self._news.clear()
                while (wake := self._next_kind()) is not None:
                    self._begin(group, wake)
                await self._news.wait()

    def _next_kind(self) -> Wake | None:
        """Return the kind of wake whose first key is to begin now, None when nothing waits or nothing may begin."""
        if sum(self._in_work.values()) >= self._workers:
            return None
        others = sum(count for wake, count in self._in_work.items() if wake is not Wake.EVENT)
        may_take_others = others < max(1, self._workers - KEPT_FOR_EVENTS)
        waiting = [wake for wake in Wake if self._waiting_keys[wake] and (wake is Wake.EVENT or may_take_others)]
        passed_over = [wake for wake in waiting if self._overtaken[wake] >= OVERTAKEN_MOST]
        return next(iter([*reversed(passed_over), *waiting]), None)

    def _begin(self, group: asyncio.TaskGroup, wake: Wake) -> None:
        key, _ = self._waiting_keys[wake].popitem(last=False)
        state = self._states[key]
        state.waiting, state.running, state.again = None, True, None
        self._in_work[wake] += 1
        self._overtaken[wake] = 0
        for later in Wake:
            if later > wake and self._waiting_keys[later]:
                self._overtaken[later] += 1
        group.create_task(self._work(key, state, wake), name=f"tick-{key}")

    async def _work(self, key: Key, state: _State, wake: Wake) -> None:
        after_seconds: float | None
        try:
            after_seconds = await self._process(key)
            state.failures = 0
        except Exception as error:  # noqa: BLE001 (one cluster's failure must not stop the others)
            after_seconds = self._backoff_seconds(state.failures)
            state.failures += 1
            logger.warning(
                "reconcile_failed key=%s failures=%d retry_seconds=%.1f error=%r",
                key,
                state.failures,
                after_seconds,
                error,
            )
        finally:
            state.running = False
            self._in_work[wake] -= 1
            self._news.set()
        if state.again is not None:
            self.add(key, state.again)
        elif after_seconds is None:
            del self._states[key]
        else:
            if after_seconds >= SPREAD_FROM_SECONDS:
                after_seconds *= 1.0 - SPREAD * self._jitter()
            loop = asyncio.get_running_loop()
            state.timer = loop.call_later(after_seconds, self.add, key, Wake.TIMER)

    def _backoff_seconds(self, failures: int) -> float:
        base: float = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures, 16))
        return base * (0.5 + 0.5 * self._jitter())
