"""A worker's agent: answers `GET /load` with what a test wants it to."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from _loopback.launch import free_ports

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients

SLOW = SpeedCoefficients(prefill_a=0.0, prefill_b=0.01, prefill_c=0.0, decode_a=0.01, decode_b=0.001, decode_c=0.0)
"""A hundred tokens of prompt take a second; steps of 11 ms and a millisecond more for each further request."""


def report(**changes: Any) -> LoadReport:
    """A report of an idle worker whose speed is known."""
    fields: dict[str, Any] = {
        "role": Role.MIXED, "role_epoch": 0, "ready": True, "draining": False, "running": 0, "waiting": 0,
        "queued_prompt_tokens": 0, "kv_usage": 0.0, "kv_held_for_peers": 0.0, "kv_capacity_tokens": 100_000,
        "speed": SLOW, "max_batch": 64, "max_batched_tokens": 8192,
    }  # fmt: skip
    return LoadReport(**{**fields, **changes})


class Agent:
    """A server on a free port."""

    def __init__(self, load: LoadReport | bytes) -> None:
        self.body = load if isinstance(load, bytes) else msgspec.json.encode(load)
        self.asked: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> Agent:
        if not self.port:
            (self.port,) = free_ports(1)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % len(self.body) + self.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
