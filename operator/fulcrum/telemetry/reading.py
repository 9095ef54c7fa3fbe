"""Bodies of answers from outside: as many bytes as were agreed on, and none that are compressed.

700 KiB of gzip can be 2 GiB. Every request asks for `identity` (`HEADERS`), and its session decompresses nothing
(`auto_decompress=False`): a limit of bytes on the wire is one of bytes in memory.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

HEADERS: Final[dict[str, str]] = {"Accept-Encoding": "identity"}
SMALL_BYTES: Final = 256 * 1024
"""Answers up to this size are read at once; larger ones in turns, of which `BIG_AT_ONCE` go on at a time."""
BIG_AT_ONCE: Final = 4
"""With the largest page (8 MiB) 32 MiB at a time: a small part of the operator's memory."""


@lru_cache(maxsize=16_384)
def known_url(text: str) -> URL:
    """Return what is asked again and again: to read an address anew takes a tenth of a call. Raises InvalidURL."""
    try:
        return URL(text)
    except ValueError as error:
        raise aiohttp.InvalidURL(text) from error


class UnfitBodyError(aiohttp.ClientError):
    """The body is larger than agreed on, or compressed; the message says which."""


class BodyReader:
    """Reads the bodies of many answers at a time, within a bound for all of them together."""

    def __init__(self) -> None:
        self._big = asyncio.Semaphore(BIG_AT_ONCE)

    async def read(self, response: aiohttp.ClientResponse, *, most_bytes: int) -> bytes:
        """Return the body. The request's own time-out ends it. Errors: UnfitBodyError, and those of aiohttp."""
        if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise UnfitBodyError("its answer is compressed, which was not asked for")
        if (response.content_length or 0) > most_bytes:
            raise UnfitBodyError(f"its answer is larger than {most_bytes} bytes")
        body = bytearray()
        if await _fill(response, body, min(SMALL_BYTES, most_bytes)):
            return bytes(body)
        if most_bytes > SMALL_BYTES:
            async with self._big:
                if await _fill(response, body, most_bytes):
                    return bytes(body)
        raise UnfitBodyError(f"its answer is larger than {most_bytes} bytes")


async def _fill(response: aiohttp.ClientResponse, body: bytearray, most_bytes: int) -> bool:
    """Read on until the end (True), or until there are more than `most_bytes`."""
    while len(body) <= most_bytes:
        chunk = await response.content.read(most_bytes + 1 - len(body))
        if not chunk:
            return True
        body += chunk
    return False
