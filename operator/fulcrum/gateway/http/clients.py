"""The connections of all clients: where they come in, which ones are late, and how they end."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from fulcrum.gateway.errors import shutting_down
from fulcrum.gateway.http.connection import ClientConnection
from fulcrum.gateway.http.places import Places

BACKLOG: Final = 2048
_KERNEL_UNSENT_BYTES: Final = 64 * 1024
"""Bytes of an answer that the kernel keeps before it can send them: by default megabytes, for a client that does not
read."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, whose options its connections inherit."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_BYTES)
    return listener


def sweep(places: Places[ClientConnection], now: float) -> None:
    """Expire what is past its deadline (loop time), and look for clients that have gone."""
    # A function of its own: the variable of a loop in a coroutine would keep the last connection in memory.
    for connection in [connection for connection in places.open if connection.deadline < now]:
        connection.expire()
    for connection in list(places.unread):
        connection.look_for_client()


async def drain(places: Places[ClientConnection], grace_seconds: float) -> int:
    """Let requests finish for so long, then end them; returns how many connections were cut."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_seconds
    while places.open and loop.time() < deadline:
        for connection in [connection for connection in places.open if connection.idle]:
            connection.close()
        await asyncio.sleep(0.05)
    for connection in list(places.open):
        connection.cancel(shutting_down())
    left = len(places.open)
    if left:
        await asyncio.sleep(0.2)  # lets the last error events leave
    for connection in list(places.open):
        connection.abort()
    return left
