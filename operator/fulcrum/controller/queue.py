"""A queue of keys: each key at most once in it, at most once in work, again later on demand, slower after failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF_SECONDS: Final = 0.2
LAST_BACKOFF_SECONDS: Final = 15.0
SPREAD_FROM_SECONDS: Final = 60.0
SPREAD: Final = 0.1
"""Long waits are shortened by up to this share: a fleet that was first seen together must not be due together."""


@dataclass(slots=True)
class _State:
    waiting: bool = False
    """In the queue."""
    running: bool = False
    again: bool = False
    """Added while it was in work."""
    failures: int = 0
    timer: asyncio.TimerHandle | None = None


class KeyedQueue(Generic[Key]):
    """Runs `process(key)` for added keys.

    `process` returns seconds until the key is due again, or None to forget it. `jitter` returns 0 to 1; back-off is
    stretched by it, and long waits are shortened, so that keys do not come back together.
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
        self._ready: asyncio.Queue[Key | None] = asyncio.Queue()
        self._stopping = False

    def add(self, key: Key) -> None:
        """Make a key due now; nothing happens if it is due already."""
        state = self._states.setdefault(key, _State())
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        if state.running:
            state.again = True
        elif not state.waiting:
            state.waiting = True
            self._ready.put_nowait(key)

    def keys(self) -> tuple[Key, ...]:
        """Every key that is due, in work, or to come."""
        return tuple(self._states)

    def stop(self) -> None:
        """Begin nothing more; `run` returns when what is in work is done."""
        self._stopping = True
        for _ in range(self._workers):
            self._ready.put_nowait(None)

    async def run(self) -> None:
        """Work until stopped or cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"queue-worker-{number}")

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            if self._stopping or key is None:
                return
            state = self._states[key]
            state.waiting, state.running, state.again = False, True, False
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
            if state.again:
                self.add(key)
            elif after_seconds is None:
                del self._states[key]
            else:
                if after_seconds >= SPREAD_FROM_SECONDS:
                    after_seconds *= 1.0 - SPREAD * self._jitter()
                state.timer = asyncio.get_running_loop().call_later(after_seconds, self.add, key)

    def _backoff_seconds(self, failures: int) -> float:
        base: float = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures, 16))
        return base * (0.5 + 0.5 * self._jitter())
