"""What `fulcrum dashboard` shows of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fulcrum.cli.connect import api_of
from fulcrum.cli.dashboard.gather import KubeSource
from fulcrum.cli.dashboard.serve import Shown
from fulcrum.dashboard import Board
from fulcrum.telemetry import Agents, ScrapeSource


@asynccontextmanager
async def opened_cluster(namespace: str | None, kubeconfig: str | None) -> AsyncIterator[Shown]:
    """Yield what follows all clusters, or those of one namespace. Errors: ConfigError."""
    async with AsyncExitStack() as stack:
        api = api_of(kubeconfig)
        stack.push_async_callback(api.close)
        await api.connect()
        agents = await stack.enter_async_context(Agents())
        scrape = await stack.enter_async_context(ScrapeSource())
        board = Board(origin="Kubernetes API", waiting="The Kubernetes API has not answered yet.")
        yield _Live(board=board, source=KubeSource(api, agents, scrape, namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    board: Board
    source: KubeSource

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.source.run())
            await self.source.synced()
            self.board.source = self.source
            tasks.create_task(self.board.run())
