"""Talk to the workers' agents: load reports in, roles out. Whatever goes wrong is "unknown", never zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from fulcrum.api.names import PORT_AGENT, Role
from fulcrum.api.worker import LoadReport, RoleRequest

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 0.3
"""A dead worker must not hold up decisions about the living."""

_LOAD: Final = msgspec.json.Decoder(LoadReport)
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError)


class Agents:
    """One HTTP session for all agents. Use as an async context manager."""

    def __init__(self, *, port: int = PORT_AGENT, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._port = port
        self._deadline_seconds = deadline_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Connections are not kept: an address may belong to another Pod by the next call.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=256, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._deadline_seconds),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def loads(self, pod_ips: Mapping[str, str]) -> dict[str, LoadReport | None]:
        """Return the load report of each worker by name, None where there was none within the deadline."""
        reports = await asyncio.gather(*(self._load(pod_ip) for pod_ip in pod_ips.values()))
        return dict(zip(pod_ips, reports, strict=True))

    async def tell_role(self, pod_ip: str, role: Role, epoch: int) -> bool:
        """Tell an agent its role; report whether it knows it now (409 means it knows a newer one)."""
        body = msgspec.json.encode(RoleRequest(role=role, role_epoch=epoch))
        try:
            async with self._open.post(
                self._url(pod_ip, "role"), data=body, headers={"Content-Type": "application/json"}
            ) as response:
                return response.status in (200, 409)
        except _FAILURES as error:
            logger.debug("role_not_told pod_ip=%s error=%r", pod_ip, error)
            return False

    async def _load(self, pod_ip: str) -> LoadReport | None:
        try:
            async with self._open.get(self._url(pod_ip, "load")) as response:
                return _LOAD.decode(await response.read()) if response.status == 200 else None
        except _FAILURES as error:
            logger.debug("load_unknown pod_ip=%s error=%r", pod_ip, error)
            return None

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use `async with Agents()`"
        return self._session

    def _url(self, pod_ip: str, path: str) -> str:
        host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
        return f"http://{host}:{self._port}/{path}"
