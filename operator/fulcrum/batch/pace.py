"""How many lines of one batch are under way, and when the next one may go: the gateway says when nothing is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 30.0
"""Longest wait after refusals in a row that named no time; one that the gateway names is kept, whatever it is."""
_GROWTH: Final = 0.5
"""More lines under way for each one that was answered; a refusal halves them."""
_SPREAD: Final = 0.25
"""Largest random part that a wait gets, so that batches of several clusters do not come together."""


class Pace:
    """Of one batch."""

    def __init__(self, most: int, *, jitter: Callable[[], float], clock: Callable[[], float]) -> None:
        """`jitter`: a random number of 0 to 1; `clock`: seconds, monotonic."""
        self._most = most
        self._jitter = jitter
        self._clock = clock
        self._allowed = float(most)
        self._under_way = 0
        self._refusals = 0
        self._not_before = 0.0
        self._freed = asyncio.Event()

    @property
    def wait_seconds(self) -> float:
        """Time until the next line may be sent, if there is room for it."""
        return max(self._not_before - self._clock(), 0.0)

    @property
    def room(self) -> int:
        """Lines that may be sent beside those under way."""
        return max(int(self._allowed), 1) - self._under_way

    async def enter(self) -> None:
        """Wait until a line may be sent. Call `leave` for it."""
        while True:
            if (wait_seconds := self.wait_seconds) > 0:
                await asyncio.sleep(wait_seconds)
            elif self.room > 0:
                self._under_way += 1
                return
            else:
                self._freed.clear()
                await self._freed.wait()

    def leave(self) -> None:
        """A line is no longer under way."""
        self._under_way -= 1
        self._freed.set()

    def answered(self) -> None:
        """A line was answered."""
        self._refusals = 0
        self._allowed = min(self._allowed + _GROWTH, float(self._most))

    def refused(self, wait_seconds: float | None) -> None:
        """A line is to come again, not before `wait_seconds` where the gateway named a time."""
        if self.wait_seconds == 0:  # of several refused together, the first one counts
            self._allowed = max(self._allowed / 2, 1.0)
            self._refusals += 1
        backoff = min(_FIRST_WAIT_SECONDS * 2 ** min(self._refusals - 1, 10), _LONGEST_WAIT_SECONDS)
        wanted = (backoff if wait_seconds is None else wait_seconds) * (1 + _SPREAD * self._jitter())
        self._not_before = max(self._not_before, self._clock() + wanted)
