"""The pool's folder, which several engines fill and which never grows beyond its bound.

    <root>/used            bytes that blocks and unfinished files take, as text; locked while it is changed
    <root>/sweeping        locked by the one engine that makes room
    <root>/unfinished/     files that are being written; each is locked by its writer
    <root>/<namespace>/<first 3 digits>/<key>.kv

The bytes are counted before a file is made, and the file has its full size from the beginning, so that no engine takes
what another one counts on. An engine that is killed leaves too high a count, and a file whose lock is free: the next
sweep puts both right.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fulcrum_worker.kv.pool.block_file import HEADER_BYTES, identity, read_block, write_block

_FULL_SHARE: Final = 0.95
"""Share of the bound from which on a sweep makes room, while others can still write."""
_SWEPT_SHARE: Final = 0.85
"""Share of the bound that a sweep leaves: it reads the whole folder, so it must not come often."""
_TOUCH_SECONDS: Final = 60.0
"""A block that was read is marked as used at most this often; more often would only cost writes."""
_DIGITS: Final = 20
_BLOCK: Final = ".kv"


@dataclass(frozen=True, slots=True)
class _Unfinished:
    path: Path
    fd: int
    size: int


class PoolFullError(OSError):
    """There is no room, and none could be made now."""


class BlockStore:
    """Blocks of one namespace. Any number of threads and processes may share a root; all methods may block."""

    def __init__(self, root: Path, *, namespace: str, limit_bytes: int) -> None:
        self._root = root
        self._folder = root / namespace
        self._namespace = namespace
        self._limit = limit_bytes
        self._unfinished = root / "unfinished"
        self._count = itertools.count()

    def path(self, key: bytes) -> Path:
        """Return where the block of `key` belongs."""
        name = key.hex()
        return self._folder / name[:3] / f"{name}{_BLOCK}"

    def has(self, key: bytes) -> bool:
        """Report whether there is a file for `key`. Raises OSError where the folder cannot be asked."""
        try:
            self.path(key).stat()
        except FileNotFoundError:
            return False
        return True

    def read(self, key: bytes, into: memoryview) -> None:
        """Fill `into` with a block and mark it as used.

        Raises FileNotFoundError for a block that is gone, BadBlockError for one that is not usable, OSError where the
        volume fails.
        """
        path = self.path(key)
        read_block(path, identity(self._namespace, key), into)
        with contextlib.suppress(OSError):  # read-only, or removed meanwhile
            if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
                os.utime(path)

    def write(self, key: bytes, block: memoryview) -> bool:
        """Store a block; False where it is there already.

        Raises PoolFullError where no room could be made, OSError where the volume fails; nothing is left behind.
        """
        if self.has(key):
            return False
        size = HEADER_BYTES + block.nbytes
        made, crowded = self._reserve(size)
        if made is None:
            if not self.sweep(room_bytes=size):
                self._await_sweeper()
            made, crowded = self._reserve(size)
        if made is None:
            raise PoolFullError("the pool is full")
        try:
            self._fill(made, key, block)
        finally:
            os.close(made.fd)
        if crowded:
            self.sweep()
        return True

    def remove(self, key: bytes) -> None:
        """Remove a block that is not usable. Raises OSError where that fails."""
        path = self.path(key)
        size = path.stat().st_size
        path.unlink()
        with self._locked_count() as count:
            count.add(-size)

    def used_bytes(self) -> int | None:
        """Return the bytes in use by all namespaces; None where it is not known."""
        try:
            return _parse((self._root / "used").read_bytes())
        except OSError:
            return None

    def clear_unfinished(self) -> None:
        """Remove what killed engines left half written. Raises OSError where the volume fails."""
        with self._locked_count() as count:
            _, removed = self._clear_unfinished()
            count.add(-removed)

    def sweep(self, *, room_bytes: int = 0) -> bool:
        """Remove what was used longest ago until there is room, and files that no writer has; put the count right.

        Where `room_bytes` are free and the pool is not crowded, no block is removed. False where another engine does
        so now. Raises OSError where the volume fails.
        """
        with self._only_sweeper() as mine:
            if not mine:
                return False
            with self._locked_count() as count:
                before = count.read()
                unfinished, _ = self._clear_unfinished()
            ages, sizes = self._survey()
            held = int(sizes.sum()) + unfinished
            if held > self._limit * _FULL_SHARE or held + room_bytes > self._limit:
                left = min(int(self._limit * _SWEPT_SHARE), self._limit - room_bytes)
                held -= self._remove_oldest(ages, sizes, held - left)
            with self._locked_count() as count:
                # What others took meanwhile may or may not have been seen: it counts.
                taken = max((count.read() or 0) - before, 0) if before is not None else 0
                count.set(held + taken)
        return True

    def _reserve(self, size: int) -> tuple[_Unfinished | None, bool]:
        """Count `size` bytes and make their file; None: no room. Also whether a sweep is due."""
        with self._locked_count() as count:
            used = count.read()
            if used is None or used + size > self._limit:
                return None, True
            count.set(used + size)
            try:
                made = self._make(size)
            except OSError:
                count.set(used)
                raise
            return made, used + size > self._limit * _FULL_SHARE

    def _make(self, size: int) -> _Unfinished:
        path = self._unfinished / f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}-{next(self._count)}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o660)
        except FileNotFoundError:
            self._unfinished.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, flags, 0o660)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return _Unfinished(path, fd, size)

    def _fill(self, made: _Unfinished, key: bytes, block: memoryview) -> None:
        path = self.path(key)
        try:
            write_block(made.fd, identity(self._namespace, key), block)
            try:
                made.path.replace(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.path.replace(path)
        except OSError:
            # While the file is locked: a sweep that took it for left behind would not count it any more, either.
            made.path.unlink(missing_ok=True)
            with self._locked_count() as count:
                count.add(-made.size)
            raise

    def _clear_unfinished(self) -> tuple[int, int]:
        """Remove files whose writers are gone; return the bytes of the others, and of these. The count is locked."""
        held = removed = 0
        for path in self._unfinished.glob("*"):
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                size = os.fstat(fd).st_size
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed += size
                except BlockingIOError:
                    held += size
                finally:
                    os.close(fd)
        return held, removed

    def _survey(self) -> tuple[np.ndarray, np.ndarray]:
        """Times of last use and sizes of all blocks, of every namespace."""
        found = [(each.st_mtime, each.st_size) for _, each in self._blocks()]
        rows = np.array(found, dtype=np.float64).reshape(-1, 2)
        return rows[:, 0], rows[:, 1]

    def _blocks(self) -> Iterator[tuple[str, os.stat_result]]:
        for namespace in _folders(self._root):
            if namespace == str(self._unfinished):
                continue
            for folder in _folders(namespace):
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            yield entry.path, entry.stat(follow_symlinks=False)

    def _remove_oldest(self, ages: np.ndarray, sizes: np.ndarray, wanted: int) -> int:
        """Remove at least `wanted` bytes, where there are as many; return what was removed."""
        if wanted <= 0 or not len(ages):
            return 0
        order = np.argsort(ages, kind="stable")
        last = min(int(np.searchsorted(np.cumsum(sizes[order]), wanted)), len(order) - 1)
        newest = ages[order[last]]
        removed = 0
        for path, status in self._blocks():
            if status.st_mtime <= newest and removed < wanted:
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                    removed += status.st_size
        return removed

    @contextlib.contextmanager
    def _locked_count(self) -> Iterator[_Count]:
        fd = self._open("used")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield _Count(fd)
        finally:
            os.close(fd)

    def _await_sweeper(self) -> None:
        """Wait for another thread or engine that makes room, as it does for the first blocks of a new pool."""
        fd = self._open("sweeping")
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _only_sweeper(self) -> Iterator[bool]:
        fd = self._open("sweeping")
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _open(self, name: str) -> int:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self._root / name, flags, 0o660)
        except FileNotFoundError:
            self._root.mkdir(parents=True, exist_ok=True)
            return os.open(self._root / name, flags, 0o660)


@dataclass(frozen=True, slots=True)
class _Count:
    """The count, while it is locked."""

    fd: int

    def read(self) -> int | None:
        return _parse(os.pread(self.fd, _DIGITS, 0))

    def set(self, size: int) -> None:
        os.pwrite(self.fd, b"%0*d" % (_DIGITS, max(size, 0)), 0)

    def add(self, size: int) -> None:
        if (used := self.read()) is not None:
            self.set(used + size)


def _parse(text: bytes) -> int | None:
    return int(text) if len(text) == _DIGITS and text.isdigit() else None


def _folders(path: Path | str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
