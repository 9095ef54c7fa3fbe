"""Connections to the API server: kept alive, noticed when dead, credentials read again when they are refused."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject

from fulcrum import __version__
from fulcrum.kube.config import load
from fulcrum.kube.errors import ConfigError

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A silent watch on a connection whose other end vanished (a node that died, a lost NAT entry) fails within 30 s."""
_REFRESH_SECONDS: Final = 10.0
"""Least time between two reloads of the configuration: a token that stays refused must not read it in a loop."""


class Rest(RESTClientObject):
    """The package's connection pool on sockets with keep-alive probes."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, socket_factory=_make_socket)


def _make_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made


class Connection:
    """One API server and our credentials for it."""

    def __init__(self, kubeconfig: str | Path | None, configuration: Configuration) -> None:
        self._kubeconfig = kubeconfig
        self.configuration = configuration
        self.client = ApiClient(configuration)
        self.client.rest_client = Rest(configuration)
        self.client.user_agent = f"fulcrum/{__version__}"
        self._loaded_at = time.monotonic()
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, kubeconfig: str | Path | None) -> Connection:
        """Read the configuration; nothing is sent yet. Errors: ConfigError."""
        return cls(kubeconfig, await load(kubeconfig))

    async def close(self) -> None:
        await self.client.close()

    async def refresh(self) -> bool:
        """Read the configuration again: credentials were refused, or no answer came and the API server may have moved.

        False when that was done just now.
        """
        async with self._lock:
            if time.monotonic() - self._loaded_at < _REFRESH_SECONDS:
                return False
            self._loaded_at = time.monotonic()
            try:
                loaded = await load(self._kubeconfig)
            except ConfigError:  # half written; what was refused is reported
                return False
            self.configuration.host = loaded.host
            self.configuration.api_key = loaded.api_key
            self.configuration.refresh_api_key_hook = loaded.refresh_api_key_hook
            if loaded.ssl_ca_cert:
                self.client.rest_client.ssl_context.load_verify_locations(loaded.ssl_ca_cert)
            if loaded.cert_file:
                self.client.rest_client.ssl_context.load_cert_chain(loaded.cert_file, loaded.key_file)
            return True
