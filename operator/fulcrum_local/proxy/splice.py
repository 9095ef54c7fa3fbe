"""Two TCP connections joined into one: bytes, back pressure, half-close and reset pass in both directions."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Address = tuple[str, int]
Choose = Callable[[], Sequence[Address]]
"""Endpoints to try for one new connection, best first."""


class _Side(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _Side | None = None
        self.ended = False
        """The other program sent its end of stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        peer = self.peer
        if peer is None or peer.transport is None:
            return False
        if peer.ended:
            peer.transport.close()
            return False
        peer.transport.write_eof()
        return True  # stay open: the other direction may go on

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        peer, self.peer, self.transport = self.peer, None, None
        if peer is None:
            return
        peer.peer = None
        if peer.transport is None:
            return
        if exc is not None:
            reset(peer.transport)
        else:
            peer.transport.close()


class Downstream(_Side):
    """A client's connection to a cluster IP: finds an endpoint, then passes bytes."""

    def __init__(self, choose: Choose, live: set[Downstream]) -> None:
        super().__init__()
        self._choose = choose
        self._live = live
        self._connecting: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._live.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.peer is None and self.transport is not None:
            # More waits in the kernel until the other side can take it. Pausing in connection_made would not do: uvloop
            # starts to read after it.
            self._early += data
            self.transport.pause_reading()
        super().data_received(data)

    def eof_received(self) -> bool:
        if self.peer is None and self._connecting is not None:
            self.ended = True
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._live.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        super().connection_lost(exc)

    def abort(self) -> None:
        """End both connections with a reset."""
        if self.transport is not None:
            reset(self.transport)
        if self.peer is not None and self.peer.transport is not None:
            reset(self.peer.transport)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        for host, port in self._choose():
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    _, upstream = await loop.create_connection(_Side, host, port)
            except OSError as error:  # a timeout is one, too
                logger.info("endpoint_refused endpoint=%s:%d error=%s", host, port, error or type(error).__name__)
                continue
            if upstream.transport is None:
                logger.info("endpoint_refused endpoint=%s:%d error=it ended the connection at once", host, port)
                continue
            self._connecting = None
            if self.transport is None or self.transport.is_closing():
                upstream.transport.abort()
                return
            self._join(upstream)
            return
        self._connecting = None
        if self.transport is not None:
            reset(self.transport)

    def _join(self, upstream: _Side) -> None:
        assert self.transport is not None
        assert upstream.transport is not None
        self.peer, upstream.peer = upstream, self
        if self._early:
            early, self._early = self._early, b""
            upstream.transport.write(early)
            self.transport.resume_reading()
        if self.ended:
            upstream.transport.write_eof()


def reset(transport: asyncio.Transport) -> None:
    """Close with RST, so that the other program does not take an error for a proper end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
