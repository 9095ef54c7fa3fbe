"""Whether the client of a connection that is not being read is still there."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from fulcrum.gateway.http.response import Response

_CLOSED: Final = 7
"""TCP_CLOSE of Linux: the other end has reset the connection."""
_STOPPED_SENDING: Final = 8
"""TCP_CLOSE_WAIT: the other end sends no more, and reads on or is gone."""
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)


def has_left(transport: asyncio.Transport, response: Response | None) -> bool:
    """Whether the client of `response` has gone. To be asked now and then.

    A client that only stopped sending is told from one that left by an interim answer, which the latter resets.
    """
    state = _state(transport)
    if state == _STOPPED_SENDING and response is not None:
        response.probe()
    return state == _CLOSED


def _state(transport: asyncio.Transport) -> int:
    """State of a TCP connection, as the kernel numbers them; 0 where it does not say."""
    connection = transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return 0
    try:
        return int(connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0])
    except OSError:
        return 0
