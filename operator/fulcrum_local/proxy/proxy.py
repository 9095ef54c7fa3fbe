"""Listeners on cluster IPs, kept in step with Services and EndpointSlices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from fulcrum.kube import Api, Resource
from fulcrum.kube.informer import Informer
from fulcrum_local.proxy.splice import Downstream
from fulcrum_local.proxy.table import Address, Table, forwarding_table

logger = logging.getLogger(__name__)

_SERVICES: Final = Resource(api_version="v1", kind="Service", plural="services")
_SLICES: Final = Resource(api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices")
_RETRY_SECONDS: Final = 2.0
_BACKLOG: Final = 4096


class Rotation:
    """Endpoints of one Service port, round robin."""

    def __init__(self) -> None:
        self.endpoints: tuple[Address, ...] = ()
        self._turn = 0

    def choose(self) -> Sequence[Address]:
        """All endpoints, starting with the next one in turn."""
        if not self.endpoints:
            return ()
        self._turn = (self._turn + 1) % len(self.endpoints)
        return self.endpoints[self._turn :] + self.endpoints[: self._turn]


class ServiceProxy:
    """Serves every Service's cluster IP until cancelled; connections end with this process, not with their Service."""

    def __init__(self, api: Api) -> None:
        self._services = Informer(api, _SERVICES)
        self._slices = Informer(api, _SLICES)
        self._changed = asyncio.Event()
        for informer in (self._services, self._slices):
            informer.subscribe(lambda _old, _new: self._changed.set())
        self._listeners: dict[Address, tuple[asyncio.Server, Rotation]] = {}
        self._live: set[Downstream] = set()

    async def run(self) -> None:
        """Watch and serve."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._services.run())
                group.create_task(self._slices.run())
                group.create_task(self._serve())
        finally:
            await self.close()

    async def close(self) -> None:
        """End every listener and connection (a uvloop with open connections cannot be closed)."""
        await self.apply({})
        while self._live:
            for connection in tuple(self._live):
                connection.abort()
            await asyncio.sleep(0)

    async def _serve(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # With one of the two lists missing every Service would look empty.
            await self._services.synced.wait()
            await self._slices.synced.wait()
            if not await self.apply(forwarding_table(self._services, self._slices)):
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._changed.set)

    async def apply(self, table: Table) -> bool:
        """Make the listeners what the table says; False when an address could not be bound (try again).

        A port without endpoints has no listener, so that clients are refused at once.
        """
        for address in [address for address in self._listeners if not table.get(address)]:
            server, _ = self._listeners.pop(address)
            server.close()
            logger.info("service_closed address=%s:%d", *address)
        complete = True
        for address, endpoints in table.items():
            if not endpoints:
                continue
            if address in self._listeners:
                self._listeners[address][1].endpoints = endpoints
                continue
            complete = await self._listen(address, endpoints) and complete
        return complete

    async def _listen(self, address: Address, endpoints: tuple[Address, ...]) -> bool:
        rotation = Rotation()
        rotation.endpoints = endpoints
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: Downstream(rotation.choose, self._live), *address, backlog=_BACKLOG
            )
        except OSError as error:
            logger.warning("service_not_served address=%s:%d error=%s", *address, error)
            return False
        self._listeners[address] = (server, rotation)
        logger.info("service_open address=%s:%d endpoints=%d", *address, len(endpoints))
        return True
