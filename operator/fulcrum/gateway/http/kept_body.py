"""The body of an answer that comes as one, within the budget for such answers. Compiled (hatch_build.py)."""

from __future__ import annotations

from typing import Final

from fulcrum.gateway.http.framing import FramingError
from fulcrum.gateway.http.response_budget import LARGE_BYTES, ResponseBudget, Waiter

_MAX_BYTES: Final = 256 * 1024 * 1024
_MAX_UNDECLARED_BYTES: Final = 4 * 1024 * 1024
"""Longest body, in bytes, of an answer without a declared length; engines declare one."""


class KeptBody:
    """Pieces of one body after the other."""

    __slots__ = ("_budget", "_left_bytes", "_pieces", "_waiter", "holds_budget")

    def __init__(self, budget: ResponseBudget, waiter: Waiter) -> None:
        self._budget = budget
        self._waiter = waiter
        self._pieces: list[bytes] = []
        self._left_bytes = 0
        self.holds_budget = False
        """The answer is large: it has room, or waits for it."""

    def begin(self, length_bytes: int | None) -> bool:
        """Expect so many bytes; False: they may be read when the budget is granted. Raises FramingError."""
        self._pieces = []
        self._left_bytes = _MAX_UNDECLARED_BYTES if length_bytes is None else length_bytes
        if self._left_bytes < LARGE_BYTES:
            return True
        if self._left_bytes > _MAX_BYTES:
            raise FramingError("answer too large")
        self.holds_budget = True
        return self._budget.take(self._waiter, self._left_bytes)

    def add(self, piece: bytes) -> int:
        """Keep a piece; bytes that are still expected, below 0: so many were too much, and are not kept."""
        self._left_bytes -= len(piece)
        self._pieces.append(piece if self._left_bytes >= 0 else piece[: self._left_bytes])
        return self._left_bytes

    def take(self) -> bytes:
        """What was kept."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """Its budget is for others."""
        if self.holds_budget:
            self.holds_budget = False
            self._budget.release(self._waiter)
