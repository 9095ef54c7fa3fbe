"""Reads the rings of a cluster's gateways. Whatever goes wrong with one is told, and never an empty ring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final

import aiohttp

from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization
from fulcrum.api.names import PORT_GATEWAY_INSIDE
from fulcrum.api.record import MOST_BYTES, PATH, RecordError, read_page
from fulcrum.rehearsal.rings import ReadRing
from fulcrum.telemetry.reading import HEADERS, BodyReader

DEADLINE_SECONDS: Final = 10.0
"""Deadline of one gateway's answer, which has up to 12 MiB."""
_TRIES: Final = 3
_BUSY_SECONDS: Final = 0.5
"""Wait before a gateway is asked again that is being read by another one."""
_SHOWN: Final = 300
"""Most bytes of a refusal that are repeated."""
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, RecordError)


async def read_rings(
    gateways: Mapping[str, str], *, token: str | None, last_seconds: float, port: int = PORT_GATEWAY_INSIDE
) -> tuple[ReadRing, ...]:
    """Return the ring of each gateway (Pod name -> address; `10.0.0.1:9082` and `[::1]:9082` have their own port)."""
    headers = {} if token is None else {AUTHORIZATION: authorization(token)}
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={**HEADERS, **headers},
    ) as session:
        urls = {
            name: f"http://{_place(address, port)}{PATH}?last={last_seconds:g}" for name, address in gateways.items()
        }
        bodies = BodyReader()
        read = await asyncio.gather(*(_read(session, bodies, name, url) for name, url in urls.items()))
    now = time.monotonic()
    return tuple(replace(ring, read_seconds_ago=now - read_at) for ring, read_at in read)


async def _read(session: aiohttp.ClientSession, bodies: BodyReader, name: str, url: str) -> tuple[ReadRing, float]:
    """A gateway's ring, and when it was read."""
    problem = ""
    for _ in range(_TRIES):
        try:
            async with session.get(url, allow_redirects=False) as response:
                read_at = time.monotonic()
                if response.status == HTTPStatus.OK:
                    body = await bodies.read(response, most_bytes=MOST_BYTES)
                    return ReadRing(gateway=name, page=read_page(body)), read_at
                refused = (await response.content.read(_SHOWN)).decode(errors="replace").strip()
                problem = f"it answers {response.status}: {refused}"
                busy = response.status == HTTPStatus.SERVICE_UNAVAILABLE
        except _FAILURES as error:
            problem = str(error) or type(error).__name__
            break
        if not busy:
            break
        await asyncio.sleep(_BUSY_SECONDS)
    return ReadRing(gateway=name, page=None, problem=problem), time.monotonic()


def _place(address: str, port: int) -> str:
    if address.startswith("["):
        return address if "]:" in address else f"{address}:{port}"
    colons = address.count(":")
    if colons == 1:
        return address
    return f"[{address}]:{port}" if colons else f"{address}:{port}"
