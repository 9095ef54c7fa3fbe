"""One wake-up in the future: the earliest that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` at the earliest of the times asked for; needs a running event loop.

    It keeps the time itself, and forgets it when it rings, for two ways of uvloop, which counts whole milliseconds: a
    timer may go off up to one too early, and a wish made in that moment must get a timer of its own; and a delay that
    rounds to none is a handle that cannot say when it is due.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.Handle | None = None
        self._due = 0.0
        """On the loop's clock; of `_handle`."""

    def within(self, seconds: float) -> None:
        """Ring after that many seconds, or before."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._handle is not None and self._due <= due:
            return
        self.off()
        self._handle, self._due = loop.call_at(due, self._ring_now), due

    def off(self) -> None:
        """Do not ring any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring_now(self) -> None:
        self._handle = None
        self._ring()
