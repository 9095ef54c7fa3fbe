"""A queue of keys: each waits at most once, fails alone, and is tried again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from fulcrum.kube import ApiError, ApiFailure

logger = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 5.0

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """Keys that are to be looked at, now or later."""

    def __init__(self, name: str) -> None:
        """`name` appears in logs."""
        self._name = name
        self._due: dict[KeyT, float] = {}
        self._failures: dict[KeyT, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: KeyT, delay_seconds: float = 0.0) -> None:
        """Look at `key` after `delay_seconds`, or earlier where that was asked for."""
        due = asyncio.get_running_loop().time() + delay_seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    async def run(self, reconcile: Callable[[KeyT], Awaitable[float | None]]) -> None:
        """Call `reconcile` for each key until cancelled; it may answer in how many seconds to call it again."""
        while True:
            key = await self._next()
            try:
                again_seconds = await reconcile(key)
            except ApiFailure as error:
                self._retry(key, str(error), expected=isinstance(error, ApiError) and error.code in {404, 409})
            except Exception:  # one object that cannot be handled must not stop the others
                logger.exception("reconcile_failed", extra={"controller": self._name, "key": key})
                self._retry(key, "see above", expected=True)
            else:
                self._failures.pop(key, None)
                if again_seconds is not None:
                    self.add(key, again_seconds)

    async def _next(self) -> KeyT:
        while True:
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            key = min(self._due, key=self._due.__getitem__, default=None)
            if key is not None and self._due[key] <= now:
                del self._due[key]
                return key
            timeout_seconds = None if key is None else self._due[key] - now
            # Not wait_for: in Python 3.11 it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._changed.wait()

    def _retry(self, key: KeyT, error: str, *, expected: bool) -> None:
        """A conflict, or something that is gone, only means that the copy was behind."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        logger.log(
            logging.DEBUG if expected else logging.WARNING,
            "reconcile_again",
            extra={"controller": self._name, "key": key, "error": error},
        )
        self.add(key, min(_FIRST_RETRY_SECONDS * 2**failures, _LONGEST_RETRY_SECONDS))
