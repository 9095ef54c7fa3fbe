"""The HTTP side of a replay: one streamed completion at a time, each with its own verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from fulcrum.replay.outcome import Outcome, Record
from fulcrum.replay.transcript import Transcript

COMPLETIONS: Final = "/v1/completions"


class EndpointError(Exception):
    """The endpoint cannot be replayed against; says what it answered."""


class Client:
    """Streams completions from one base URL; an async context manager.

    Every request has a connection of its own: a proxy below HTTP then spreads requests, not long-lived connections,
    over gateways, and no request dies because an idle connection was closed at the moment it was taken up again.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 600.0, headers: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def stream(
        self,
        body: bytes,
        *,
        path: str = COMPLETIONS,
        wanted_tokens: int | None = None,
        due_seconds: float | None = None,
        max_retries: int = 0,
    ) -> Record:
        """Sends one streamed request and reads it to its end; never raises for what the endpoint does.

        A rejected request is sent again after its `Retry-After`, at most `max_retries` times.
        """
        sent_seconds = perf_counter()
        due_seconds = sent_seconds if due_seconds is None else due_seconds
        retries = 0
        while True:
            transcript = Transcript()
            outcome, detail, retry_after_seconds = await self._attempt(path, body, transcript, wanted_tokens)
            if outcome is not Outcome.REJECTED or retries >= max_retries:
                break
            retries += 1
            await asyncio.sleep(retry_after_seconds or 0)
        return Record(
            outcome=outcome,
            detail=detail,
            due_seconds=due_seconds,
            sent_seconds=sent_seconds,
            first_token_seconds=transcript.first_token_seconds,
            last_token_seconds=transcript.last_token_seconds,
            end_seconds=perf_counter(),
            output_tokens=transcript.output_tokens,
            retries=retries,
            retry_after_seconds=retry_after_seconds,
            text=transcript.text,
            path=transcript.path,
        )

    async def _attempt(
        self, path: str, body: bytes, transcript: Transcript, wanted_tokens: int | None
    ) -> tuple[Outcome, str, float | None]:
        assert self._session is not None, "use `async with Client(...)`"
        try:
            async with self._session.post(self.url + path, data=body) as response:
                if response.status != 200:
                    return await _refusal(response)
                transcript.path = response.headers.get("x-fulcrum-path", "")
                async for data in response.content.iter_any():
                    transcript.feed(data, perf_counter())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Outcome.FAILED, f"cannot connect: {error}", None
        except TimeoutError:
            return Outcome.LOST, f"no end after {self._timeout.total} s", None
        except (aiohttp.ClientError, OSError) as error:
            outcome, detail = transcript.verdict(wanted_tokens)
            if outcome is Outcome.FAILED:
                return outcome, detail, None
            return Outcome.LOST, f"connection ended: {type(error).__name__}: {error}", None
        return *transcript.verdict(wanted_tokens), None

    async def json(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        accept: tuple[int, ...] = (200,),
        max_retries: int = 0,
    ) -> tuple[int, dict[str, Any]]:
        """Sends one request that is answered with a JSON object: (status, object). Raises EndpointError.

        A rejected request is sent again after its `Retry-After`, at most `max_retries` times.
        """
        assert self._session is not None, "use `async with Client(...)`"
        data = None if body is None else msgspec.json.encode(body)
        retries = 0
        while True:
            try:
                async with self._session.request(method, self.url + path, data=data) as response:
                    if response.status in accept:
                        return response.status, msgspec.json.decode(await response.read(), type=dict[str, Any])
                    outcome, detail, retry_after_seconds = await _refusal(response)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise EndpointError(f"{method} {self.url}{path}: {error}") from error
            if outcome is not Outcome.REJECTED or retries >= max_retries:
                raise EndpointError(f"{method} {self.url}{path}: {detail}")
            retries += 1
            await asyncio.sleep(retry_after_seconds or 0)


async def _refusal(response: aiohttp.ClientResponse) -> tuple[Outcome, str, float | None]:
    """What an answer with an error status amounts to."""
    try:
        text = (await response.read())[:300].decode(errors="replace")
    except (aiohttp.ClientError, OSError):
        text = "(body cut off)"
    reason = response.headers.get("x-fulcrum-rejected")
    detail = f"HTTP {response.status}: {reason or text}"
    retry_after = response.headers.get("Retry-After")
    if response.status in {429, 503} and retry_after is not None:
        return Outcome.REJECTED, detail, _retry_after_seconds(retry_after)
    return Outcome.FAILED, detail, None


def _retry_after_seconds(value: str) -> float:
    """Seconds; a date (the header's other form) is rare enough to be taken as one second."""
    try:
        return max(0.0, float(value))
    except ValueError:
        return 1.0
