"""Sends one line to the gateways of the cluster, as the API key that the batch is of."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp

from fulcrum.api.batch import KEY_HEADER, BatchConfig
from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization

logger = logging.getLogger(__name__)

_MOST_ANSWER_BYTES: Final = 32 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 3600.0 + 60.0
"""The gateway ends a request before."""
_CONNECT_SECONDS: Final = 5.0
_ALWAYS_AGAIN: Final = frozenset((429, 503))
_LONGEST_RETRY_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The gateway's answer to a line."""

    status: int
    request_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A line is to be sent again later."""

    wait_seconds: float | None = None
    """Time that the gateway named."""
    answer: Answer | None = None
    """What it said, where the line may be at fault: after several of these it is the answer."""


class Sender:
    """To be entered before it is used."""

    def __init__(self, config: BatchConfig, token: str | None) -> None:
        host = f"[{config.gateway_host}]" if ":" in config.gateway_host else config.gateway_host
        self._url = f"http://{host}:{config.gateway_port}"
        self._most = config.limits.max_in_flight
        self._headers = {"content-type": "application/json"}
        if config.class_header is not None and config.class_value is not None:
            self._headers[config.class_header] = config.class_value
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS, sock_connect=_CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most), timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, owner: str, endpoint: str, body: bytes) -> Answer | Again:
        """Send a line. Raises nothing but what cancelling does."""
        assert self._session is not None
        headers = dict(self._headers)
        if owner and self._token is not None:
            headers |= {AUTHORIZATION: authorization(self._token), KEY_HEADER: owner}
        try:
            async with self._session.post(self._url + endpoint, data=body, headers=headers) as response:
                text = await _read(response)
                answer = Answer(
                    status=response.status, request_id=response.headers.get("x-request-id", "")[:256], body=text
                )
                return _outcome(answer, _wait_seconds(response))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            logger.info("gateway_unreachable error=%s", type(error).__name__)
            return Again()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_chunked(256 * 1024):
        size += len(piece)
        if size > _MOST_ANSWER_BYTES:
            response.close()
            return b'{"error": {"message": "The answer is larger than 32 MiB, so it was not kept."}}'
        pieces.append(piece)
    return b"".join(pieces)


def _outcome(answer: Answer, wait_seconds: float | None) -> Answer | Again:
    if answer.status in _ALWAYS_AGAIN:
        return Again(wait_seconds=wait_seconds)
    if answer.status >= 500 and wait_seconds is not None:
        return Again(wait_seconds=wait_seconds, answer=answer)
    return answer


def _wait_seconds(response: aiohttp.ClientResponse) -> float | None:
    for header, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = response.headers.get(header, "")
        if text.isascii() and text.isdecimal() and len(text) <= 9:
            return min(int(text) * unit, _LONGEST_RETRY_SECONDS)
    return None
