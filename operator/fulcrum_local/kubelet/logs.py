"""Reading what a shim wrote: CRI lines, across one rotation, with the options of `kubectl logs`."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, Self

_POLL_SECONDS: Final = 0.1
_MESSAGE_LINES: Final = 80
_MESSAGE_BYTES: Final = 2048
_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The query of a log request."""

    tail_lines: int | None = None
    since: dt.datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    follow: bool = False


def render(line: bytes, options: LogOptions) -> bytes | None:
    """What a reader sees of one stored line (without line end for a partial one); None when it is not wanted."""
    parts = line.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 3:
        return None
    stamp, flag, text = parts[0], parts[2], parts[3] if len(parts) > 3 else b""
    if options.since is not None and _time(stamp) < options.since:
        return None
    prefix = stamp + b" " if options.timestamps else b""
    return prefix + text + (b"" if flag == b"P" else b"\n")


def termination_message(directory: Path) -> str:
    """The last 80 lines or 2048 bytes of a log, whichever is shorter."""
    lines = deque(stored_lines(directory), maxlen=_MESSAGE_LINES)
    rendered = b"".join(filter(None, (render(line, LogOptions()) for line in lines)))
    return rendered[-_MESSAGE_BYTES:].decode(errors="replace").rstrip("\n")


def stored_lines(directory: Path) -> Iterator[bytes]:
    """Every whole stored line, oldest first."""
    return chain(_lines(directory / "log.1"), _lines(directory / "log"))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return


async def read(directory: Path, options: LogOptions, *, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log as bytes; when followed, until `ended()` and everything is read.

    `limit_bytes` bounds what is sent, `tail_lines` what of the past is sent.
    """
    left = options.limit_bytes if options.limit_bytes is not None else -1
    async for chunk in _chunks(directory, options, ended=ended):
        if left >= 0:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return
        else:
            yield chunk


async def _chunks(directory: Path, options: LogOptions, *, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    with _Cursor(directory) as cursor:
        past = chain(_lines(directory / "log.1"), cursor.fresh_lines())
        wanted = past if options.tail_lines is None else deque(past, maxlen=options.tail_lines)
        batch = bytearray()
        for line in wanted:
            batch += render(line, options) or b""
            if len(batch) > _CHUNK_BYTES:
                yield bytes(batch)
                batch.clear()
                await asyncio.sleep(0)
        if batch:
            yield bytes(batch)
        while options.follow:
            over = ended()
            fresh = b"".join(filter(None, (render(line, options) for line in cursor.fresh_lines())))
            if fresh:
                yield fresh
            elif over:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)


class _Cursor:
    """Position in a log that grows and is renamed to `log.1` now and then."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"
        self._fd = -1

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = -1
        self._rest = b""

    def fresh_lines(self) -> list[bytes]:
        """Whole lines since the last call."""
        if self._fd < 0:
            self._open()
            if self._fd < 0:
                return []
        renamed = self._renamed()
        chunks = [self._rest]
        while chunk := os.read(self._fd, _CHUNK_BYTES):
            chunks.append(chunk)
        *lines, rest = b"".join(chunks).split(b"\n")
        self._rest = rest
        if renamed:
            os.close(self._fd)
            self._open()
        return lines

    def _renamed(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False


def _time(stamp: bytes) -> dt.datetime:
    text = stamp.decode("ascii", errors="replace")
    try:
        # Python keeps microseconds; the shim writes nanoseconds.
        return dt.datetime.fromisoformat(text[:26] + "+00:00")
    except ValueError:
        return dt.datetime.max.replace(tzinfo=dt.UTC)
