"""Deadlines of calls that count only the time in which this process could hear the answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

_PARTS: Final = 5
"""Parts of a deadline: an event loop that is late hears at least as often before it gives up, which is enough for a
connection, the head of an answer, and its body."""


class Within:
    """As `asyncio.timeout`, for a loop that may be late. An async context manager; raises TimeoutError.

    Each part of the deadline begins when the loop has noticed the end of the one before. So a loop that is late with
    everything reads what lies in its sockets before the time is up: an answer that came in time is not lost, with its
    connection, for a fault of this process.
    """

    __slots__ = ("_bound", "_left", "_loop", "_part_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._part_seconds, self._left = seconds / _PARTS, _PARTS

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = asyncio.timeout(None)
        await self._bound.__aenter__()
        self._timer = self._loop.call_later(self._part_seconds, self._part_is_over)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._bound.__aexit__(kind, error, trace)

    def _part_is_over(self) -> None:
        self._left -= 1
        if self._left > 0:
            self._timer = self._loop.call_later(self._part_seconds, self._part_is_over)
        else:
            self._bound.reschedule(self._loop.time())
