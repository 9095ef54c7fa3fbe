"""Files and batches in a directory. What a method has done is on the disk, so the process may be killed at any time.

`files/ID` is the content of a file and `files/ID.json` what is known of it; one without the other is not a file.
`batches/ID.json` is a batch. Documents are replaced whole.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fulcrum.batch.objects import StoredBatch, StoredFile

logger = logging.getLogger(__name__)

_NEW: Final = ".new-"
"""Beginning of the names of files that are not complete."""
Document = TypeVar("Document", StoredFile, StoredBatch)


class StoreError(Exception):
    """The directory cannot be used; the message says why, and what to do."""


class Store:
    """One process's hold on a directory. Everything is in memory too, but contents."""

    def __init__(self, directory: Path) -> None:
        """Raises StoreError."""
        self._files = directory / "files"
        self._batches = directory / "batches"
        try:
            for folder in (self._files, self._batches):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{directory} is used by another batch process: wait until that one has ended") from error
        except OSError as error:
            raise StoreError(
                f"{directory} cannot be written ({error.strerror}): mount a claim there that this user may write"
            ) from error
        self.files = _read_all(self._files, StoredFile)
        self.batches = _read_all(self._batches, StoredBatch)
        self._writing = asyncio.Lock()
        self._remove_leftovers()

    def close(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock_file)

    def content(self, file_id: str) -> Path:
        """Where the content of a file is, or grows."""
        return self._files / file_id

    def new_content(self, file_id: str) -> Path:
        """Where the content of a file is put until it is whole."""
        return self._files / f"{_NEW}{file_id}"

    async def add_file(self, file: StoredFile, new_content: Path | None = None) -> None:
        """Keep a file; its content is on the disk, at `new_content` or in its place."""
        async with self._writing:
            if new_content is not None:
                await asyncio.to_thread(new_content.replace, self.content(file.id))
            await asyncio.to_thread(_write, self._files / f"{file.id}.json", msgspec.json.encode(file))
            self.files[file.id] = file

    async def delete_file(self, file_id: str) -> None:
        """Forget a file: first what is known of it."""
        async with self._writing:
            self.files.pop(file_id, None)
            await asyncio.to_thread(_delete, (self._files / f"{file_id}.json", self.content(file_id)))

    async def add_batch(self, batch: StoredBatch) -> None:
        """Keep a new batch."""
        async with self._writing:
            await asyncio.to_thread(_write, self._batches / f"{batch.id}.json", msgspec.json.encode(batch))
            self.batches[batch.id] = batch

    async def change_batch(self, batch_id: str, change: Callable[[StoredBatch], StoredBatch]) -> StoredBatch:
        """Replace a batch by what `change` makes of it; nobody else changes it meanwhile."""
        async with self._writing:
            before = self.batches[batch_id]
            batch = change(before)
            if batch is not before:
                await asyncio.to_thread(_write, self._batches / f"{batch.id}.json", msgspec.json.encode(batch))
                # What was counted meanwhile is in the result files.
                now = self.batches[batch_id]
                if (now.completed, now.failed) != (before.completed, before.failed):
                    batch = msgspec.structs.replace(batch, completed=now.completed, failed=now.failed)
                self.batches[batch_id] = batch
            return batch

    def count(self, batch_id: str, *, completed: int, failed: int) -> None:
        """Note progress in memory: the result files have it on the disk."""
        self.batches[batch_id] = msgspec.structs.replace(self.batches[batch_id], completed=completed, failed=failed)

    async def delete_batch(self, batch_id: str) -> None:
        """Forget a batch."""
        async with self._writing:
            self.batches.pop(batch_id, None)
            await asyncio.to_thread(_delete, (self._batches / f"{batch_id}.json",))

    def _remove_leftovers(self) -> None:
        """Remove what a killed process left half done."""
        growing = {
            name
            for each in self.batches.values()
            if not each.ended
            for name in (each.output_file_id, each.error_file_id)
        }
        for path in [*self._files.iterdir(), *self._batches.iterdir()]:
            in_files = path.parent == self._files
            orphan = in_files and path.suffix != ".json" and path.name not in self.files and path.name not in growing
            if path.name.startswith(_NEW) or orphan:
                path.unlink(missing_ok=True)
        for file_id in [each for each in self.files if not self.content(each).is_file()]:
            logger.warning("file_without_content id=%s", file_id)
            del self.files[file_id]
            _delete((self._files / f"{file_id}.json",))


def _read_all(folder: Path, kind: type[Document]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            document = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError) as error:
            # Left where it is: a newer release may have written it.
            logger.warning("document_unreadable path=%s error=%s", path.name, type(error).__name__)
            continue
        found[document.id] = document
    return found


def _write(path: Path, content: bytes) -> None:
    made = path.with_name(f"{_NEW}{path.name}")
    with made.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    sync_folder(path.parent)


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
