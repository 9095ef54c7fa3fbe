"""One KV block as a file: a header that says what it is, then its bytes.

A block that is cut short, changed or of something else is found out before it is used. The checksum is CRC-32: the
quickest that Python brings, and made for torn writes and flipped bits. It is no defence against a writer with malice;
such a one needs write access to the volume.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from enum import StrEnum
from pathlib import Path
from typing import Final

_MAGIC: Final = b"FULKV\0\0\1"
_HEADER: Final = struct.Struct("<8s32sQI12x")
HEADER_BYTES: Final = _HEADER.size


class Flaw(StrEnum):
    """What is wrong with a file."""

    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    """Another block, or a block of other weights, another dtype, layout or vLLM."""


class BadBlockError(Exception):
    """The file holds no usable block."""

    def __init__(self, flaw: Flaw, path: Path) -> None:
        super().__init__(f"{path}: {flaw}")
        self.flaw = flaw


def identity(namespace: str, key: bytes) -> bytes:
    """Return the 32 bytes that name a block: of this namespace, with this key."""
    return hashlib.sha256(namespace.encode() + b"\0" + key).digest()


def write_block(fd: int, identity: bytes, block: memoryview) -> None:
    """Write header and block to an open, empty file. Raises OSError, also where not all could be written."""
    header = _HEADER.pack(_MAGIC, identity, block.nbytes, zlib.crc32(block, zlib.crc32(identity)))
    left = [memoryview(header), block.cast("B")]
    while left:
        written = os.writev(fd, left)
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if left:
            left[0] = left[0][written:]


def read_block(path: Path, identity: bytes, into: memoryview) -> None:
    """Fill `into` with the block. Raises BadBlockError for a file that is not this block, OSError where it is absent.

    After an error `into` holds anything.
    """
    header = bytearray(HEADER_BYTES)
    wanted = HEADER_BYTES + into.nbytes
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        left = [memoryview(header), into.cast("B")]
        while left:
            count = os.readv(fd, left)
            if count == 0:
                break
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if left:
                left[0] = left[0][count:]
    finally:
        os.close(fd)
    if size < HEADER_BYTES:
        raise BadBlockError(Flaw.TRUNCATED, path)
    magic, named, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise BadBlockError(Flaw.CORRUPT, path)
    if named != identity or length != into.nbytes:
        raise BadBlockError(Flaw.FOREIGN, path)
    if size != wanted or left:
        raise BadBlockError(Flaw.TRUNCATED, path)
    if zlib.crc32(into, zlib.crc32(identity)) != checksum:
        raise BadBlockError(Flaw.CORRUPT, path)
