"""Calls of the Prometheus client, which is synchronous: in a few threads, each under a deadline that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Final, Self, TypeVar

from fulcrum.telemetry.turns import Turns

AT_ONCE: Final = 4
"""Calls that go on at a time, in a thread each. Their largest answers take 160 MiB together, decoded."""
MOST_ADDRESSES: Final = 4
"""Addresses of a name that are tried: whoever names the server also says how many it has."""
_CLIENT: Final = "fulcrum.telemetry.prometheus_session"

Answer = TypeVar("Answer")


class Call:
    """The time and the connections of one call, which runs in a thread. Another thread may cut it."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        """Other handles of the sockets that were opened: ours, whatever TLS and the client do with theirs."""
        self._is_cut = False

    def left_seconds(self) -> float:
        """Raises TimeoutError when nothing is left."""
        left_seconds = self._ends_at - time.monotonic()
        if self._is_cut or left_seconds <= 0:
            raise TimeoutError
        return left_seconds

    def connect(self, host: str, port: int) -> socket.socket:
        """Open a connection that `cut` ends. Raises OSError."""
        error = OSError("no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            :MOST_ADDRESSES
        ]:
            opened = socket.socket(family, kind, protocol)
            try:
                with self._lock:
                    self._sockets.append(opened.dup())
                opened.settimeout(self.left_seconds())
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as refused:
                opened.close()
                error = refused
            else:
                return opened
        raise error

    def cut(self) -> None:
        """End it: what it waits for comes to its end at once."""
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                with contextlib.suppress(OSError):  # it was not connected
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of its sockets."""
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()


class PrometheusCalls:
    """The threads of all calls to Prometheus servers. Use as an async context manager: it owns them.

    Callers take turns, so servers that are slow on purpose delay the calls of others by one call's time at most.
    """

    def __init__(self) -> None:
        self._turns = Turns(AT_ONCE)
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="prometheus")
        self._going: set[Call] = set()
        self._client: ModuleType | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for call in self._going:
            call.cut()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def client(self) -> ModuleType:
        """Return the module that asks (prometheus_session). It is imported here, in a thread and in no call's time."""
        if self._client is None:
            self._client = await asyncio.get_running_loop().run_in_executor(self._threads, import_module, _CLIENT)
        return self._client

    async def run(self, caller: Hashable, seconds: float, ask: Callable[[Call], Answer]) -> Answer:
        """Return what `ask` returns, asked in a thread.

        Errors: those of `ask`; TimeoutError after `seconds` without a turn, or `seconds` after the call began. The turn
        is given back when the thread is done.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            await self._turns.take(caller)
        call = Call(seconds)

        def ended(answering: asyncio.Future[Answer]) -> None:
            self._going.discard(call)
            self._turns.give()
            if not answering.cancelled():
                answering.exception()  # nobody waits for it any more when the call was cut

        self._going.add(call)
        try:
            answering = loop.run_in_executor(self._threads, _ask, ask, call)
        except RuntimeError:  # the threads were shut down
            self._going.discard(call)
            self._turns.give()
            raise
        answering.add_done_callback(ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answering)
        finally:
            call.cut()


def _ask(ask: Callable[[Call], Answer], call: Call) -> Answer:
    try:
        return ask(call)
    finally:
        call.close()
