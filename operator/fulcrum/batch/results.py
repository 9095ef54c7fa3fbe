"""The output file and the error file of a batch while they grow: each line is written whole, synced once, and kept."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from fulcrum.batch.store import sync_folder

EXPIRED_CODE = "batch_expired"


class _Error(msgspec.Struct):
    code: str | None = None


class _Line(msgspec.Struct):
    custom_id: str
    error: _Error | None = None


class Results:
    """Both files of one batch. Blocking work is done in threads, one at a time."""

    def __init__(self, output: Path, errors: Path) -> None:
        """To be made in a thread: it reads what was written before. Raises OSError."""
        self.done: set[str] = set()
        """`custom_id` of the lines that have a result."""
        self.expired = False
        """Some of these came too late."""
        self._output, self.completed = self._open(output)
        self._errors, self.failed = self._open(errors)
        sync_folder(output.parent)
        self._lock = asyncio.Lock()
        self._closed = False

    def _open(self, path: Path) -> tuple[int, int]:
        """Read whole lines; what a killed process has left behind them is cut off."""
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        whole_bytes = lines = 0
        with open(handle, "rb", closefd=False) as file:
            for raw in file:
                try:
                    line = msgspec.json.decode(raw, type=_Line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    break
                if not raw.endswith(b"\n"):
                    break
                self.done.add(line.custom_id)
                self.expired = self.expired or (line.error is not None and line.error.code == EXPIRED_CODE)
                whole_bytes += len(raw)
                lines += 1
        os.ftruncate(handle, whole_bytes)
        return handle, lines

    async def append(self, custom_id: str, line: bytes, *, failed: bool) -> None:
        """Keep the result of a line; once this returns, it is on the disk. Raises OSError: then nothing is kept."""
        async with self._lock:
            if self._closed or custom_id in self.done:
                return
            await asyncio.to_thread(_append, self._errors if failed else self._output, line + b"\n")
            self.done.add(custom_id)
            if failed:
                self.failed += 1
            else:
                self.completed += 1

    async def close(self) -> None:
        """No more lines; waits for the one that is being written."""
        async with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._output)
                os.close(self._errors)


def _append(handle: int, data: bytes) -> None:
    before = os.fstat(handle).st_size
    try:
        written = 0
        while written < len(data):
            written += os.write(handle, data[written:])
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, before)
        raise
