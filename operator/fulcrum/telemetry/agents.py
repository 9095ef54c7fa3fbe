"""Talk to the workers' agents: load reports in, roles out. Whatever goes wrong is "unknown", never zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from fulcrum.api.gateway import PairsReport
from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization
from fulcrum.api.names import HEADER_POD, PORT_GATEWAY_INSIDE, Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport, RoleRequest
from fulcrum.telemetry.reading import HEADERS, BodyReader
from fulcrum.telemetry.turns import Turns

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 0.3
"""Deadline of a call to an agent: a dead worker must not hold up decisions about the others."""
_AT_ONCE: Final = 64
"""Calls at a time, clusters in turn: enough that 1,000 dead workers of one take 5 s, and few enough that no deadline
passes while a call waits for this process."""
_IDLE_SECONDS: Final = 30.0

_PAIRS: Final = msgspec.json.Decoder(PairsReport)
_LOAD: Final = msgspec.json.Decoder(LoadReport)
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, RecursionError)
_LOAD_BYTES: Final = 256 * 1024
"""Most of a load report: one of an agent with all tables full has 20 KiB."""
_PAIRS_BYTES: Final = 1024 * 1024
"""Most of a report about pairs: 10,000 failing ones."""


class Agents:
    """One HTTP session for all agents. Use as an async context manager.

    Connections are kept between calls. An address may belong to another Pod by the next one, so an answer counts only
    when it names the Pod that was meant (agents that name none are believed). No redirect is followed: authors choose
    what a Pod runs, and the operator reaches more than a Pod does.
    """

    def __init__(
        self,
        *,
        gateway_port: int = PORT_GATEWAY_INSIDE,
        deadline_seconds: float = DEADLINE_SECONDS,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._gateway_port = gateway_port
        self._deadline_seconds = deadline_seconds
        self._turns = Turns(at_once)
        self._session: aiohttp.ClientSession | None = None
        self._bodies = BodyReader()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Turns are what bounds the calls; each worker's connection stays open.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=self._deadline_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=HEADERS,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def loads(self, workers: Mapping[str, AgentAddress]) -> dict[str, LoadReport | None]:
        """Return the load report of each worker by name, None where there was none within the deadline."""
        caller = object()
        reports = await asyncio.gather(*(self._load(caller, name, agent) for name, agent in workers.items()))
        return dict(zip(workers, reports, strict=True))

    async def pairs(self, gateway_ips: Mapping[str, str]) -> tuple[PairsReport, ...]:
        """Return what the canaries of each gateway (Pod name -> address) found; without gateways that do not answer."""
        caller = object()
        reports = await asyncio.gather(*(self._pairs(caller, ip) for ip in gateway_ips.values()))
        return tuple(report for report in reports if report is not None)

    async def _pairs(self, caller: object, gateway_ip: str) -> PairsReport | None:
        host = f"[{gateway_ip}]" if ":" in gateway_ip else gateway_ip
        url = f"http://{host}:{self._gateway_port}/kv-pairs"
        try:
            async with self._turns.of(caller), self._open.get(url, allow_redirects=False) as response:
                if response.status != HTTPStatus.OK:
                    return None
                return _PAIRS.decode(await self._bodies.read(response, most_bytes=_PAIRS_BYTES))
        except _FAILURES as error:  # one of an older release has no such port
            logger.debug("pairs_unknown url=%s error=%r", url, error)
            return None

    async def tell_role(
        self, agent: AgentAddress, role: Role, epoch: int, *, pod_name: str | None = None, token: str | None = None
    ) -> bool:
        """Tell an agent its role; report whether it knows it now (409 means it knows a newer one).

        With `pod_name`, an agent of another Pod refuses; `token` is the cluster's.
        """
        body = msgspec.json.encode(RoleRequest(role=role, role_epoch=epoch))
        url, headers = f"http://{agent}/role", {"Content-Type": "application/json"}
        if pod_name is not None:
            headers[HEADER_POD] = pod_name
        if token is not None:
            headers[AUTHORIZATION] = authorization(token)
        try:
            async with (
                self._turns.of(agent),
                self._open.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if response.status == HTTPStatus.UNAUTHORIZED:
                    logger.warning("role_refused agent=%s reason=token", agent)
                return response.status in (200, 409)
        except _FAILURES as error:
            logger.debug("role_not_told agent=%s error=%r", agent, error)
            return False

    async def _load(self, caller: object, name: str, agent: AgentAddress) -> LoadReport | None:
        try:
            async with (
                self._turns.of(caller),
                self._open.get(f"http://{agent}/load", allow_redirects=False) as response,
            ):
                if response.status != HTTPStatus.OK:
                    return None
                report = _LOAD.decode(await self._bodies.read(response, most_bytes=_LOAD_BYTES))
                answerer = response.headers.get(HEADER_POD, "")
        except _FAILURES as error:
            logger.debug("load_unknown agent=%s error=%r", agent, error)
            return None
        if answerer not in ("", name):
            logger.info("load_misdirected agent=%s meant=%s answered=%s", agent, name, answerer)
            return None
        return report

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use `async with Agents()`"
        return self._session
