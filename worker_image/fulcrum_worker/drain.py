"""Waiting until a worker has nothing left that a client or a peer waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fulcrum_worker.engine_metrics import EngineMetrics

POLL_SECONDS: Final = 0.5
_IDLE_SCRAPES: Final = 2
"""One idle scrape can fall between two requests, or between a request's end and the next leg's KV pull."""


async def wait_until_idle(
    scrape: Callable[[], Awaitable[EngineMetrics]], *, timeout_seconds: float, poll_seconds: float = POLL_SECONDS
) -> bool:
    """Polls until running = waiting = KV held = 0 on two consecutive scrapes; False when the time is over.

    An unknown figure is not zero: a failed scrape starts the count again.
    """
    deadline = time.monotonic() + timeout_seconds
    idle_scrapes = 0
    while True:
        idle_scrapes = idle_scrapes + 1 if (await scrape()).idle else 0
        if idle_scrapes == _IDLE_SCRAPES:
            return True
        if time.monotonic() + poll_seconds > deadline:
            return False
        await asyncio.sleep(poll_seconds)
