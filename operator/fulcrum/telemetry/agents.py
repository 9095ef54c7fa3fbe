"""Talk to the workers' agents: load reports in, roles out. Whatever goes wrong is "unknown", never zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeVar

import aiohttp
import msgspec

from fulcrum.api.batch import BatchCounts
from fulcrum.api.gateway import DemandReport, LoadsReport, PairsReport
from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization
from fulcrum.api.names import HEADER_POD, PORT_BATCH, PORT_GATEWAY_INSIDE, Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import AdapterSource, AdaptersRequest, LoadReport, RoleRequest, SleepRequest
from fulcrum.telemetry.deadline import Within
from fulcrum.telemetry.reading import HEADERS, BodyReader, known_url
from fulcrum.telemetry.turns import Turns

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 0.3
"""Deadline of a call to an agent: a dead worker must not hold up decisions about the others."""
_AT_ONCE: Final = 64
"""Calls at a time, clusters in turn: enough that 1,000 dead workers of one take 5 s, and few enough that no deadline
passes while a call waits for this process."""
_IDLE_SECONDS: Final = 30.0

_Report = TypeVar("_Report")
_PAIRS: Final = msgspec.json.Decoder(PairsReport)
_DEMAND: Final = msgspec.json.Decoder(DemandReport)
_BATCHES: Final = msgspec.json.Decoder(BatchCounts)
_LOAD: Final = msgspec.json.Decoder(LoadReport)
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, RecursionError)
_LOADS: Final = msgspec.json.Decoder(LoadsReport)
_LOAD_BYTES: Final = 256 * 1024
"""Most of a load report: one of an agent with all tables full has 20 KiB."""
_LOADS_BYTES: Final = 8 * 1024 * 1024
"""Most of what a gateway tells of all its workers: of 4,000 with usual reports."""
_PAIRS_BYTES: Final = 1024 * 1024
"""Most of a report about pairs: 10,000 failing ones."""

_DEMAND_BYTES: Final = 4 * 1024
"""Most of a report about demand, or about batches: a few numbers."""


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
        batch_port: int = PORT_BATCH,
        deadline_seconds: float = DEADLINE_SECONDS,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._gateway_port = gateway_port
        self._batch_port = batch_port
        self._deadline_seconds = deadline_seconds
        self._turns = Turns(at_once)
        self._session: aiohttp.ClientSession | None = None
        self._bodies = BodyReader()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Turns are what bounds the calls; each worker's connection stays open.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(),
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

    async def heard_loads(self, gateway_ips: Mapping[str, str]) -> LoadsReport | None:
        """Return the load reports that a gateway (Pod name -> address) has read, of the first one that answers.

        One call instead of one for each worker; what is told is up to some seconds old.
        """
        caller = object()
        for ip in gateway_ips.values():
            found = await self._of_pod(caller, ip, self._gateway_port, "/loads", _LOADS, most_bytes=_LOADS_BYTES)
            if found is not None:
                return found
        return None

    async def pairs(self, gateway_ips: Mapping[str, str]) -> tuple[PairsReport, ...]:
        """Return what the canaries of each gateway (Pod name -> address) found; without gateways that do not answer."""
        reports = await self._of_gateways(gateway_ips, "/kv-pairs", _PAIRS, _PAIRS_BYTES)
        return tuple(report for report in reports if report is not None)

    async def demand(self, gateway_ips: Mapping[str, str]) -> tuple[DemandReport | None, ...]:
        """Return whether each gateway is asked for the model; None for one that does not answer."""
        return await self._of_gateways(gateway_ips, "/demand", _DEMAND, _DEMAND_BYTES)

    async def _of_gateways(
        self, ips: Mapping[str, str], path: str, decoder: msgspec.json.Decoder[_Report], most_bytes: int
    ) -> tuple[_Report | None, ...]:
        caller = object()

        async def ask(gateway_ip: str) -> _Report | None:
            return await self._of_pod(caller, gateway_ip, self._gateway_port, path, decoder, most_bytes=most_bytes)

        return tuple(await asyncio.gather(*(ask(ip) for ip in ips.values())))

    async def batches(self, batch_ip: str) -> BatchCounts | None:
        """Return what waits and runs at a batch Pod; None when it does not answer."""
        return await self._of_pod(object(), batch_ip, self._batch_port, "/progress", _BATCHES, most_bytes=_DEMAND_BYTES)

    async def _of_pod(
        self,
        caller: object,
        pod_ip: str,
        port: int,
        path: str,
        decoder: msgspec.json.Decoder[_Report],
        *,
        most_bytes: int,
    ) -> _Report | None:
        host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
        url = f"http://{host}:{port}{path}"
        try:
            async with (
                self._turns.of(caller),
                Within(self._deadline_seconds),
                self._open.get(known_url(url), allow_redirects=False) as response,
            ):
                if response.status != HTTPStatus.OK:
                    return None
                return decoder.decode(await self._bodies.read(response, most_bytes=most_bytes))
        except _FAILURES as error:  # one of an older release has no such page
            logger.debug("report_unknown url=%s error=%r", url, error)
            return None

    async def tell_role(
        self, agent: AgentAddress, role: Role, epoch: int, *, pod_name: str | None = None, token: str | None = None
    ) -> bool:
        """Tell an agent its role; report whether it knows it now (409 means it knows a newer one).

        With `pod_name`, an agent of another Pod refuses; `token` is the cluster's.
        """
        request = RoleRequest(role=role, role_epoch=epoch)
        return await self._tell(agent, "role", request, heard=(200, 409), pod_name=pod_name, token=token)

    async def tell_adapters(
        self, agent: AgentAddress, adapters: tuple[AdapterSource, ...], *, pod_name: str, token: str | None = None
    ) -> bool:
        """Tell an agent which LoRA adapters its engine is to have; report whether it need not be told again.

        409 and 404 come from workers that take none: of an older revision, or release.
        """
        request = AdaptersRequest(adapters=adapters)
        return await self._tell(agent, "adapters", request, heard=(202, 404, 409), pod_name=pod_name, token=token)

    async def tell_sleep(
        self, agent: AgentAddress, request: SleepRequest, *, pod_name: str, token: str | None = None
    ) -> bool:
        """Have an agent put its engine to sleep, or wake it up; report whether it will."""
        return await self._tell(agent, "sleep", request, heard=(202,), pod_name=pod_name, token=token)

    async def _tell(
        self,
        agent: AgentAddress,
        what: str,
        request: RoleRequest | AdaptersRequest | SleepRequest,
        *,
        heard: tuple[int, ...],
        pod_name: str | None,
        token: str | None,
    ) -> bool:
        body = msgspec.json.encode(request)
        url, headers = f"http://{agent}/{what}", {"Content-Type": "application/json"}
        if pod_name is not None:
            headers[HEADER_POD] = pod_name
        if token is not None:
            headers[AUTHORIZATION] = authorization(token)
        try:
            async with (
                self._turns.of(agent),
                Within(self._deadline_seconds),
                self._open.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if response.status == HTTPStatus.UNAUTHORIZED:
                    logger.warning("%s_refused agent=%s reason=token", what, agent)
                return response.status in heard
        except _FAILURES as error:
            logger.debug("%s_not_told agent=%s error=%r", what, agent, error)
            return False

    async def _load(self, caller: object, name: str, agent: AgentAddress) -> LoadReport | None:
        try:
            async with (
                self._turns.of(caller),
                Within(self._deadline_seconds),
                self._open.get(known_url(f"http://{agent}/load"), allow_redirects=False) as response,
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
