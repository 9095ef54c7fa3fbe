"""Which client connections are open, and which one makes way for a new one."""

from __future__ import annotations

from enum import IntEnum
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

_REFUSED_AT_ONCE: Final = 256
"""Connections over the limit that get an answer which says so, at a time; more are only closed."""
_LOOKED_AT: Final = 64
"""Idle connections, at most, that are looked at for one that has read its answers: a new connection costs so much."""


class Holder(Protocol):
    """A client connection."""

    def abort(self) -> None:
        """Cut the connection."""

    def unsent_bytes(self) -> int:
        """What waits for the client to read."""


Connection = TypeVar("Connection", bound=Holder)


class Place(IntEnum):
    """What a new connection gets."""

    TAKEN = 0
    NONE = 1
    """It is to be told that there is none."""
    SHUT = 2
    """There are too many to be told."""


class Places(Generic[Connection]):
    """Places for client connections. When none is left, the connection that is idle for longest is cut.

    One whose answer has not left whole stays, unless that is so of all that are looked at.
    A connection is idle while it has no request whose head is complete: one that never completes a head keeps no place.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: set[Connection] = set()
        self.unread: set[Connection] = set()
        """With a request under way, and not read: that the client leaves is not seen."""
        self._idle: dict[Connection, None] = {}

    def enter(self, connection: Connection) -> Place:
        """A new connection, idle."""
        self.open.add(connection)
        surplus = len(self.open) - self.most
        if surplus > 0 and self._idle:
            oldest = next((each for each in islice(self._idle, _LOOKED_AT) if not each.unsent_bytes()), None)
            oldest = oldest or next(iter(self._idle))
            self.leave(oldest)
            oldest.abort()
            surplus -= 1
        self._idle[connection] = None
        if surplus <= 0:
            return Place.TAKEN
        return Place.NONE if surplus <= _REFUSED_AT_ONCE else Place.SHUT

    def busy(self, connection: Connection) -> None:
        """It has a request whose head is complete."""
        self._idle.pop(connection, None)

    def rest(self, connection: Connection) -> None:
        """It is idle again."""
        self.unread.discard(connection)
        if connection in self.open:
            self._idle.pop(connection, None)
            self._idle[connection] = None  # the last one now

    def leave(self, connection: Connection) -> None:
        """It is gone."""
        self.open.discard(connection)
        self.unread.discard(connection)
        self._idle.pop(connection, None)
