"""A worker on several nodes: which of them is missing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fulcrum_worker import group
from fulcrum_worker.group import GroupPlace, wait_for_nodes


async def test_the_node_that_a_group_waits_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    running = {"c-p-0-0-1.c-p-0.ml"}
    told: list[str | None] = []

    async def lookup(host: str, _port: None) -> list[Any]:
        if host not in running:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    async def more(_seconds: float) -> None:
        running.add(f"c-p-0-0-{len(running) + 1}.c-p-0.ml")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    monkeypatch.setattr(group.asyncio, "sleep", more)
    await wait_for_nodes(GroupPlace(nodes=4, rank=0, leader="c-p-0-0.c-p-0.ml"), told.append)
    assert told == [
        "node 2 (c-p-0-0-2.c-p-0.ml) has no address: its Pod does not run yet",
        "node 3 (c-p-0-0-3.c-p-0.ml) has no address: its Pod does not run yet",
        None,
    ]
