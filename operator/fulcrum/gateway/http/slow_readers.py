"""Clients that do not read their answers: what waits for them here is bounded, each one's time and all together."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from fulcrum.gateway.http.budget import Budget
from fulcrum.gateway.http.response_budget import ResponseBudget

logger = logging.getLogger(__name__)

STALL_SECONDS: Final = 30.0
"""Time in which a client whose answer waits must take `_PROGRESS_BYTES`: 2 KB/s, slower than any modem."""
CROWDED_SECONDS: Final = 2.0
"""The same time for a large answer while other answers wait for its room."""
BUDGET_BYTES: Final = 96 * 1024 * 1024
"""Most bytes that wait for slow clients; one slow stream holds 0.1 to 0.3 MB."""
_PROGRESS_BYTES: Final = 64 * 1024


class Reader(Protocol):
    """A client connection."""

    def unsent_bytes(self) -> int:
        """What waits to be sent."""

    def abort(self) -> None:
        """Cut the connection; what an engine does for it ends too."""


class SlowReaders:
    """Connections with more to send than their clients take."""

    def __init__(self, *, stall_seconds: float = STALL_SECONDS, budget_bytes: int = BUDGET_BYTES) -> None:
        self._stall_seconds = stall_seconds
        self._budget: Budget[Reader] = Budget(budget_bytes)
        self._waiting: dict[Reader, tuple[float, int]] = {}
        """Since when (loop time), and what was unsent then."""
        self.cut = {"stalled": 0, "budget": 0}
        """Connections that were cut, by cause."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reader: Reader, now: float) -> None:
        """A client no longer keeps up."""
        unsent_bytes = reader.unsent_bytes()
        self._waiting[reader] = (now, unsent_bytes)
        self._cut(self._budget.hold(reader, unsent_bytes), "budget")

    def remove(self, reader: Reader) -> None:
        """It does again, or is gone."""
        if self._waiting.pop(reader, None) is not None:
            self._budget.release(reader)

    def sweep(self, now: float, response_budget: ResponseBudget) -> None:
        """Cut the clients that made too little progress."""
        stalled = []
        crowded = response_budget.waiting > 0
        for reader, (since, before_bytes) in list(self._waiting.items()):
            if reader not in self._waiting:
                continue  # over the budget, a moment ago
            unsent_bytes = reader.unsent_bytes()
            if before_bytes - unsent_bytes >= _PROGRESS_BYTES:
                self._waiting[reader] = (now, unsent_bytes)
            elif now - since > (CROWDED_SECONDS if crowded and response_budget.keeps(reader) else self._stall_seconds):
                stalled.append(reader)
            self._cut(self._budget.hold(reader, unsent_bytes), "budget")
        self._cut([reader for reader in stalled if reader in self._waiting], "stalled")

    def _cut(self, readers: list[Reader], cause: str) -> None:
        if not readers:
            return
        unsent_bytes = clients = 0
        for reader in readers:
            unsent_bytes += reader.unsent_bytes()
            clients += 1
            self.remove(reader)
            reader.abort()
        self.cut[cause] += clients
        logger.warning(
            "slow_readers_cut cause=%s clients=%d unsent_bytes=%d slow_readers_left=%d",
            cause, clients, unsent_bytes, len(self),
        )  # fmt: skip
