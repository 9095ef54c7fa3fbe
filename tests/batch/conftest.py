"""A gateway with API keys and engines, and the batch process as a process of its own, which may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from _loopback.launch import free_ports
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, Site, make_site, pytest_asyncio_loop_factories
from tests.machine import deadline_seconds

from fulcrum.api.batch import GatewayBatch
from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassKind, ClassMatch, QosClass
from fulcrum.api.worker import SpeedCoefficients

__all__ = ["make_site", "pytest_asyncio_loop_factories"]

TOKEN = "cluster-token"
KEYS = {"anna": "secret-of-anna", "ben": {"key": "secret-of-ben", "class": "chat"}}
CLASSES = (
    QosClass(name="chat", priority=10),
    QosClass(name="batch", kind=ClassKind.BATCH, priority=0, match=ClassMatch(header="x-class", value="batch")),
)


QUICK = SpeedCoefficients(prefill_a=0.0, prefill_b=1e-6, prefill_c=0.0, decode_a=1e-3, decode_b=1e-6, decode_c=0.0)


@dataclass
class House:
    """One cluster."""

    site: Site
    directory: Path
    port: int
    limits: dict[str, Any]
    process: asyncio.subprocess.Process | None = None
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.site.engines["e"]

    async def start(self) -> None:
        """Start the batch process; returns when it listens."""
        config = {
            "cluster": "c", "gatewayHost": "127.0.0.1", "gatewayPort": self.site.gateway.port, "limits": self.limits,
            "classHeader": "x-class", "classValue": "batch", "directory": str(self.directory),
        }  # fmt: skip
        environment = {**os.environ, "FULCRUM_BATCH_CONFIG": json.dumps(config), "POD_IP": "127.0.0.1"}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fulcrum.cli.app", "batch",
            "--port", str(self.port),
            env={**environment, "FULCRUM_INTERNAL_TOKEN": TOKEN},
        )  # fmt: skip
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(deadline_seconds(60)):
            while True:
                assert self.process.returncode is None
                with contextlib.suppress(httpx.TransportError):
                    await client.get(f"http://127.0.0.1:{self.port}/ready")
                    return
                await asyncio.sleep(0.02)

    async def end(self, number: signal.Signals) -> int:
        """End the batch process; returns its exit status."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        async with asyncio.timeout(deadline_seconds(60)):
            return await process.wait()

    def client(self, key: str = "secret-of-anna") -> openai.AsyncOpenAI:
        """The official client, as anyone would make it."""
        made = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.site.gateway.port}/v1", api_key=key)
        self.clients.append(made)
        return made


MakeHouse = Callable[..., Awaitable[House]]


@pytest.fixture
async def make_house(make_site: Any, tmp_path: Path) -> AsyncIterator[MakeHouse]:
    houses: list[House] = []
    agents: list[Agent] = []

    async def make(*, limits: dict[str, Any] | None = None, start: bool = True, known: bool = True) -> House:
        folder = tmp_path / "keys"
        folder.mkdir()
        for name, key in KEYS.items():
            (folder / name).write_text(key if isinstance(key, str) else json.dumps(key))
        agent = await Agent(report(speed=QUICK)).start()
        agents.append(agent)
        (port,) = free_ports(1)
        site = await make_site(
            Engine("e", Role.MIXED, facts={"agent_port": agent.port} if known else {}),
            token=TOKEN,
            config={
                "admission": Admission(classes=CLASSES),
                "api_keys_directory": str(folder),
                "batch": GatewayBatch(class_name="batch", host="127.0.0.1", port=port),
            },
        )
        house = House(site, tmp_path / "claim", port, limits or {})
        houses.append(house)
        if start:
            await house.start()
        return house

    yield make
    for house in houses:
        for client in house.clients:
            await client.close()
        if house.process is not None and house.process.returncode is None:
            await house.end(signal.SIGTERM)
    for agent in agents:
        await agent.stop()


def lines(count: int, url: str = "/v1/chat/completions", **body: Any) -> bytes:
    """An input file as OpenAI's documentation shows it."""
    said = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **body}
    return b"".join(
        json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": url, "body": said}).encode() + b"\n"
        for number in range(count)
    )


def read(text: str) -> list[dict[str, Any]]:
    """A file of results."""
    return [json.loads(line) for line in text.splitlines()]


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    """The batch once it has ended."""
    async with asyncio.timeout(deadline_seconds(60)):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.02)
