"""Reads an upload (multipart/form-data) piece by piece into a file."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Final

import aiohttp
from aiohttp import BodyPartReader, web

from fulcrum.api.batch import BatchLimits
from fulcrum.batch.objects import StoredFile
from fulcrum.batch.store import Store, sync_folder
from fulcrum.gateway.errors import RequestError, bad_request, overloaded

_PIECE_BYTES: Final = 256 * 1024
_MOST_FIELD_BYTES: Final = 4096
_MOST_PARTS: Final = 16
_MOST_UPLOADS: Final = 8
"""Uploads at once: each of them may fill the disk by a whole file."""
_OVERHEAD_BYTES: Final = 64 * 1024
"""Most bytes of an upload beside the file."""
_LONGEST_NAME: Final = 255
MIN_EXPIRY_SECONDS: Final = 3600
_PURPOSE: Final = "batch"


class Uploads:
    """Takes files in."""

    def __init__(self, store: Store, limits: BatchLimits) -> None:
        self._store = store
        self._limits = limits
        self._under_way = 0

    async def take(self, request: web.Request, owner: str) -> StoredFile:
        """Keep the file of an upload; returns once it is on the disk. Raises RequestError, OSError."""
        if request.content_type != "multipart/form-data":
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send the file as multipart/form-data.")
        if (request.content_length or 0) > self._limits.max_file_bytes + _OVERHEAD_BYTES:
            raise self._too_large()
        if self._under_way >= _MOST_UPLOADS:
            raise overloaded("Too many files are being uploaded. Retry later.")
        self._check_number(owner)
        file_id = f"file-{secrets.token_hex(12)}"
        made = self._store.new_content(file_id)
        self._under_way += 1
        try:
            name, size, fields = await self._read(request, made)
            self._check_number(owner)
            file = self._described(file_id, owner, name, size, fields)
            await self._store.add_file(file, made)
        finally:
            self._under_way -= 1
            made.unlink(missing_ok=True)
        return file

    async def _read(self, request: web.Request, made: Path) -> tuple[str, int, dict[str, str]]:
        """Name and size of the file, whose content is at `made` then, and the other fields."""
        name: str | None = None
        size = 0
        fields: dict[str, str] = {}
        try:
            reader = await request.multipart()
            for _ in range(_MOST_PARTS):
                part = await reader.next()
                if part is None:
                    break
                if not isinstance(part, BodyPartReader):
                    raise bad_request(
                        "A part of the upload is itself multipart: send the file as one part.", param="file"
                    )
                if part.name == "file" and name is None:
                    name = part.filename or "upload.jsonl"
                    size = await self._write(part, made)
                else:
                    fields[part.name or ""] = await _text(part)
            else:
                raise bad_request(f"The upload has more than {_MOST_PARTS} parts.")
        except (ValueError, aiohttp.ClientPayloadError, aiohttp.http.HttpProcessingError) as error:
            raise bad_request("The body is not valid multipart/form-data.", param="file") from error
        if name is None:
            raise bad_request("The upload has no part `file`.", param="file")
        return name, size, fields

    async def _write(self, part: BodyPartReader, made: Path) -> int:
        size = 0
        with made.open("wb") as file:
            while piece := await part.read_chunk(_PIECE_BYTES):
                size += len(piece)
                if size > self._limits.max_file_bytes:
                    raise self._too_large()
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(_sync, file)
        await asyncio.to_thread(sync_folder, made.parent)
        return size

    def _described(self, file_id: str, owner: str, name: str, size: int, fields: dict[str, str]) -> StoredFile:
        if fields.get("purpose") != _PURPOSE:
            raise bad_request("`purpose` must be `batch`: files are kept for batches only.", param="purpose")
        if not size:
            raise bad_request("The file is empty: write one request as JSON on each line.", param="file")
        now = int(time.time())
        given = fields.get("expires_after[seconds]")
        lives_seconds = int(self._limits.retention_seconds)
        if given is not None or "expires_after[anchor]" in fields:
            number = int(given) if given and given.isascii() and given.isdecimal() and len(given) < 10 else None
            lives_seconds = min(
                checked_expiry(fields.get("expires_after[anchor]"), number, "expires_after"), lives_seconds
            )
        shown = "".join(each for each in name.replace("\\", "/").rpartition("/")[2] if each.isprintable())
        return StoredFile(
            id=file_id,
            owner=owner,
            filename=shown[-_LONGEST_NAME:] or "upload.jsonl",
            purpose=_PURPOSE,
            bytes=size,
            created_at=now,
            expires_at=now + lives_seconds,
        )

    def _check_number(self, owner: str) -> None:
        most = self._limits.max_files
        if sum(file.owner == owner and file.purpose == _PURPOSE for file in self._store.files.values()) >= most:
            raise bad_request(
                f"This key has {most} files, which is all that it may have (spec.batch.maxFiles): delete some.",
                param="file", code="too_many_files",
            )  # fmt: skip

    def _too_large(self) -> RequestError:
        return RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The file is larger than {self._limits.max_file_bytes} bytes (spec.batch.maxFileSize): split it.",
            param="file",
            code="file_too_large",
        )


def checked_expiry(anchor: str | None, seconds: int | None, param: str) -> int:
    """Seconds that a file is to live. Raises RequestError (400)."""
    if anchor != "created_at" or seconds is None or seconds < MIN_EXPIRY_SECONDS:
        raise bad_request(
            f"`{param}` must have the anchor `created_at` and `seconds` of at least {MIN_EXPIRY_SECONDS}.", param=param
        )
    return seconds


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


async def _text(part: BodyPartReader) -> str:
    text = b""
    while piece := await part.read_chunk(_MOST_FIELD_BYTES):
        text += piece
        if len(text) > _MOST_FIELD_BYTES:
            raise bad_request(f"The part `{(part.name or '')[:100]}` is too long.", param=(part.name or "")[:100])
    return text.decode(errors="replace")
