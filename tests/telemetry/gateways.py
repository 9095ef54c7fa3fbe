"""Real gateway processes over trivial engines, for the sources to read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from tests.gateway.conftest import Engine
from tests.machine import deadline_seconds

from fulcrum.api.names import Role

CONFIG = json.dumps(
    {"cluster": "chat", "servedName": "m", "model": "org/m", "sloTtftSeconds": 30.0, "sloTpotSeconds": 30.0}
)


@dataclass
class GatewayProcess:
    """One gateway: its address, its port for clients, and that for metrics."""

    process: asyncio.subprocess.Process
    pod_name: str
    host: str
    port: int
    inside_port: int

    @property
    def target(self) -> str:
        """Where its metrics are."""
        return f"{self.host}:{self.inside_port}"

    async def ask(self, requests: int) -> None:
        """Send streamed requests, one after the other."""
        body = {"model": "m", "prompt": "x", "stream": True}
        async with aiohttp.ClientSession() as session:
            for _ in range(requests):
                async with session.post(f"http://{self.host}:{self.port}/v1/completions", json=body) as response:
                    assert response.status == 200
                    await response.read()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start_gateway(
    pod_name: str, host: str, workers: list[Engine], *, port: int = 0, inside_port: int = 0
) -> GatewayProcess:
    """Start a gateway and wait until it listens."""
    environment = {
        **os.environ,
        "FULCRUM_GATEWAY_CONFIG": CONFIG,
        "POD_IP": host,
        "POD_NAME": pod_name,
        "POD_NAMESPACE": "prod",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fulcrum.cli.app", "gateway", "--port", str(port), "--no-prewarm",
        "--metrics-port", str(inside_port),
        "--lame-duck-seconds", "0", *(f"--static-worker={each.role}=http://127.0.0.1:{each.port}" for each in workers),
        stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert process.stderr is not None
    log = b""
    async with asyncio.timeout(deadline_seconds(60)):
        while not (started := re.search(rb"gateway_started .*port=(\d+) inside=(\d+)", log)):
            line = await process.stderr.readline()
            assert line, log.decode()
            log += line
    return GatewayProcess(process, pod_name, host, int(started[1]), int(started[2]))


@contextlib.asynccontextmanager
async def two_gateways() -> AsyncIterator[tuple[GatewayProcess, GatewayProcess]]:
    """Two gateways of the cluster prod/chat, with metrics on one port of two loopback addresses, as Pods have them."""
    engines = [Engine("p", Role.PREFILL), Engine("d", Role.DECODE)]
    started: list[GatewayProcess] = []
    try:
        for engine in engines:
            await engine.start()
        started.append(await start_gateway("chat-gateway-a", "127.0.0.1", engines))
        started.append(await start_gateway("chat-gateway-b", "127.77.3.2", engines, inside_port=started[0].inside_port))
        yield started[0], started[1]
    finally:
        for gateway in started:
            await gateway.kill()
        for engine in engines:
            await engine.stop()
