"""Memory for large answers that come as one, bounded for all connections together. Pure.

An answer that finds no room is not read: it waits where it is, at its engine, and is read when others have left. What a
client was given and has not taken yet still fills room, so that a burst of large answers waits for its readers, too.
Small answers need none.
"""

from __future__ import annotations

from typing import Final, Protocol

LARGE_BYTES: Final = 64 * 1024
"""Answers from this many bytes on need room in the budget."""
ROOM_BYTES: Final = 64 * 1024 * 1024


class Waiter(Protocol):
    """A connection to an engine."""

    def budget_granted(self) -> None:
        """Its answer may be read on."""


class ResponseBudget:
    """Which responses hold room, and which wait for it, in order of arrival."""

    def __init__(self, most_bytes: int = ROOM_BYTES) -> None:
        self.most_bytes = most_bytes
        self._held: dict[object, int] = {}
        self._waiting: dict[object, tuple[Waiter, int]] = {}
        self.total_bytes = 0

    @property
    def waiting(self) -> int:
        """Answers that wait."""
        return len(self._waiting)

    def take(self, waiter: Waiter, answer_bytes: int) -> bool:
        """Room for an answer of so many bytes; False: `budget_granted` will say when."""
        if not self._waiting and self._fits(answer_bytes):
            self.keep(waiter, answer_bytes)
            return True
        self._waiting[waiter] = (waiter, answer_bytes)
        return False

    def keep(self, holder: object, held_bytes: int) -> None:
        """`holder` has so much, whether there is room for it or not."""
        self.total_bytes += held_bytes - self._held.get(holder, 0)
        self._held[holder] = held_bytes

    def keeps(self, holder: object) -> bool:
        """Whether `holder` has any."""
        return holder in self._held

    def release(self, holder: object) -> None:
        """`holder` has, or wants, nothing any more."""
        self._waiting.pop(holder, None)
        self.total_bytes -= self._held.pop(holder, 0)
        while self._waiting:
            waiter, answer_bytes = next(iter(self._waiting.values()))
            if not self._fits(answer_bytes):
                return
            del self._waiting[waiter]
            self.keep(waiter, answer_bytes)
            waiter.budget_granted()

    def _fits(self, answer_bytes: int) -> bool:
        # One that is larger than all room has to be served as well.
        return not self._held or self.total_bytes + answer_bytes <= self.most_bytes
