"""Transfers between host memory and the pool: blocks in order, by threads of their own, that can be cut at any time.

Each thread has a buffer of its own. What it reads goes to host memory only when it was found whole and the transfer was
not cut; what it writes was copied out before. So a volume that hangs holds up a thread, and no memory of the engine.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Move = Callable[[bytes, memoryview], None]
"""Read a block into the buffer, or write it from there; raises where that fails."""


@dataclass(slots=True)
class Transfer:
    """Blocks of one request on their way. Shared between threads: guarded by `lock`."""

    job_id: int
    keys: Sequence[bytes]
    rows: Sequence[int]
    """Rows of host memory, one for each key."""
    reads: bool
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    moved: list[int] = field(default_factory=list)
    """Indexes of blocks that are there."""
    changed: float = field(default_factory=time.monotonic)
    """When a block was last moved."""
    ended: int = 0
    """Blocks that were moved, or failed."""
    cut: bool = False

    @property
    def finished(self) -> bool:
        """Nothing of it touches host memory any more."""
        return self.cut or self.ended == len(self.keys)

    def cut_now(self) -> None:
        """From here on neither host memory is read nor written for it."""
        with self.lock:
            self.cut = True


class Movers:
    """Threads that move the blocks of one direction, in order of submission."""

    def __init__(self, name: str, *, host: np.ndarray, move: Move, threads: int, changed: threading.Event) -> None:
        """`host` is host memory, one row for each block; `changed` is set whenever a transfer has ended."""
        self._host: np.ndarray | None = host
        self._row_bytes = host.shape[1]
        self._move = move
        self._changed = changed
        self._tasks: queue.SimpleQueue[tuple[Transfer, int] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"kv-pool-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, transfer: Transfer) -> None:
        """Move the blocks of a transfer after those that wait."""
        for index in range(len(transfer.keys)):
            self._tasks.put((transfer, index))

    def close(self, *, wait_seconds: float) -> None:
        """End the threads once they are done with what they do; one that hangs is left behind.

        All transfers must have been cut, so that no thread touches host memory any more.
        """
        for _ in self._threads:
            self._tasks.put(None)
        ends = time.monotonic() + wait_seconds
        for thread in self._threads:
            thread.join(max(ends - time.monotonic(), 0.0))
        self._host = None

    def _run(self) -> None:
        buffer = np.empty(self._row_bytes, dtype=np.uint8)
        while (task := self._tasks.get()) is not None:
            transfer, index = task
            if transfer.cut:
                continue
            moved = self._moved(transfer, index, buffer)
            with transfer.lock:
                transfer.ended += 1
                if moved:
                    transfer.moved.append(index)
                    transfer.changed = time.monotonic()
                finished = transfer.finished
            if finished:
                self._changed.set()

    def _moved(self, transfer: Transfer, index: int, buffer: np.ndarray) -> bool:
        if not transfer.reads and not self._copied(transfer, index, buffer):
            return False
        try:
            self._move(transfer.keys[index], buffer.data)
        except Exception:  # noqa: BLE001 (the tier has noted what was wrong; the block is computed anew)
            return False
        return not transfer.reads or self._copied(transfer, index, buffer)

    def _copied(self, transfer: Transfer, index: int, buffer: np.ndarray) -> bool:
        """Copy between host memory and the buffer; False where the transfer was cut."""
        with transfer.lock:
            if transfer.cut or self._host is None:
                return False
            row = self._host[transfer.rows[index]]
            np.copyto(*((row, buffer) if transfer.reads else (buffer, row)))
            return True
