"""So many calls at a time, shared fairly: callers take turns, however many calls each of them wants to make."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from types import TracebackType


class Turns:
    """At most `at_once` calls go on. A caller with 1,000 calls that wait makes another one wait for one call's time."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        """Calls that wait, by caller; the first caller is next."""

    def of(self, caller: Hashable) -> _Turn:
        """Wait for a turn of `caller`, and keep it within the context."""
        return _Turn(self, caller)

    async def take(self, caller: Hashable) -> None:
        """Wait for a turn of `caller`, who gives it back."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it came at the same moment
            raise

    def give(self) -> None:
        """Give a turn that is free to the next caller."""
        while self._waiting:
            caller, calls = self._waiting.popitem(last=False)
            turn = calls.popleft()
            if calls:
                self._waiting[caller] = calls
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Turn:
    """A turn as a context. No generator: there are hundreds a second, and most need not wait."""

    __slots__ = ("_caller", "_turns")

    def __init__(self, turns: Turns, caller: Hashable) -> None:
        self._turns, self._caller = turns, caller

    async def __aenter__(self) -> None:
        await self._turns.take(self._caller)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.give()
