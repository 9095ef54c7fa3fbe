"""Clients that do not read their answers: what waits for them here is bounded, each one's time and all together."""

from __future__ import annotations

import logging
from typing import Final, Protocol

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""A client whose answer waits here must take `_PROGRESS_BYTES` of it in this time: 2 KB/s, below any modem."""
BUDGET_BYTES: Final = 96 * 1024 * 1024
"""All that may wait here for clients that do not keep up; a full one holds about 0.3 MB."""
_PROGRESS_BYTES: Final = 64 * 1024
_LEFT_OF_BUDGET: Final = 0.75
"""Over the budget, so much of it is left, so that not each further byte begins another search."""


class Reader(Protocol):
    """A client connection."""

    def unsent_bytes(self) -> int:
        """What waits to be sent."""

    def abort(self) -> None:
        """Cut the connection; what an engine does for it ends too."""


class SlowReaders:
    """Connections with more to send than their clients take."""

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS, budget_bytes: int = BUDGET_BYTES) -> None:
        self._patience_seconds = patience_seconds
        self._budget_bytes = budget_bytes
        self._waiting: dict[Reader, tuple[float, int]] = {}
        """Since when (loop time), and what was unsent then."""
        self._total_bytes = 0
        self.cut = {"stalled": 0, "budget": 0}
        """Connections that were cut, by cause."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reader: Reader, now: float) -> None:
        """A client no longer keeps up."""
        self.remove(reader)
        unsent_bytes = reader.unsent_bytes()
        self._waiting[reader] = (now, unsent_bytes)
        self._total_bytes += unsent_bytes
        if self._total_bytes > self._budget_bytes:
            self._shed()

    def remove(self, reader: Reader) -> None:
        """It does again, or is gone."""
        entry = self._waiting.pop(reader, None)
        if entry is not None:
            self._total_bytes -= entry[1]

    def sweep(self, now: float) -> None:
        """Cut who made too little progress."""
        stalled = []
        for reader, (since, before_bytes) in list(self._waiting.items()):
            unsent_bytes = reader.unsent_bytes()
            if before_bytes - unsent_bytes >= _PROGRESS_BYTES:
                self.add(reader, now)
            elif now - since > self._patience_seconds:
                stalled.append(reader)
            elif unsent_bytes > before_bytes:
                self._waiting[reader] = (since, unsent_bytes)
                self._total_bytes += unsent_bytes - before_bytes
        self._cut(stalled, "stalled")
        if self._total_bytes > self._budget_bytes:
            self._shed()

    def _shed(self) -> None:
        """Cut who holds most, until the rest fits: that is never one who is only a little late."""
        over_bytes = self._total_bytes - self._budget_bytes * _LEFT_OF_BUDGET
        readers = []
        for reader in sorted(self._waiting, key=lambda each: -self._waiting[each][1]):
            readers.append(reader)
            over_bytes -= self._waiting[reader][1]
            if over_bytes <= 0:
                break
        self._cut(readers, "budget")

    def _cut(self, readers: list[Reader], cause: str) -> None:
        if not readers:
            return
        before_bytes = self._total_bytes
        for reader in readers:
            self.remove(reader)
            reader.abort()
        self.cut[cause] += len(readers)
        logger.warning(
            "slow_readers_cut cause=%s clients=%d unsent_bytes=%d slow_readers_left=%d",
            cause, len(readers), before_bytes - self._total_bytes, len(self),
        )  # fmt: skip
