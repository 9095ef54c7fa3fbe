"""What a gateway's process and a front's have in common: logs, memory, and a life that ends with SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Coroutine
from typing import Any, Protocol

import uvloop

from fulcrum.gateway.config import raise_file_limit
from fulcrum.gateway.http.places import Places
from fulcrum.gateway.unhandled import log_unhandled

logger = logging.getLogger(__name__)


class Server(Protocol):
    """What serves clients until it is stopped."""

    places: Places[Any]

    async def start(self) -> None:
        """Listen."""

    async def stop(self) -> None:
        """Finish what is under way."""


def start_logging(level: str) -> None:
    """Log lines of `key=value` on stderr."""
    logging.basicConfig(
        level=level, format="time=%(asctime)s.%(msecs)03d level=%(levelname)s logger=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )  # fmt: skip


def run_process(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end of `main`."""
    # The request path makes little garbage in cycles; what is loaded by now is never garbage.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    uvloop.run(main)


async def serve_until_signalled(server: Server, max_connections: int) -> None:
    """Serve until SIGTERM or SIGINT, as many connections as files can be open for."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_unhandled)
    server.places.most = min(max_connections, raise_file_limit() // 2)  # a stream takes two files
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    await server.start()
    await signalled.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await server.stop()


def report_death(task: asyncio.Task[None]) -> None:
    """Log that a background task ended by an error; for `add_done_callback`."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("background_task_died", exc_info=task.exception())
