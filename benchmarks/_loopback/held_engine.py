"""Engines that hold streams open, flood them, or answer whole: what a gateway must bear.

    held_engine.py PORT ADDRESS [ADDRESS ...]

Listens on PORT of each address. The body's `"user"` chooses: `idle` streams a token every 8 s, `flood` streams
16 MiB as fast as it is read, `large` answers 4 MiB at once, anything else is answered shortly (whole).
`GET /held` tells how many streams are open, and how many the gateway gave up.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
from typing import ClassVar

import uvloop
from connection import STREAM_END, STREAM_HEAD, Connection, chunk, load_report, whole

FLOOD_EVENTS = 16 * 1024
IDLE_SECONDS = 8.0
"""A stream without a token for 15 s would be taken for dead."""


def _answer(text: bytes) -> bytes:
    return whole(
        b'{"id":"c","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":"%b","logprobs":'
        b'null,"finish_reason":"length"}],"usage":{"prompt_tokens":200,"completion_tokens":50}}' % text
    )


def _event(text: bytes) -> bytes:
    data = b'data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":"%b"}]}\n\n' % text
    return chunk(data)


EVENT = _event(b" token")
LARGE_EVENT = _event(b"x" * 940)
SHORT = _answer(b" token" * 50)
LARGE = _answer(b"x" * (4 * 1024 * 1024))
PREFILLED = whole(
    b'{"id":"c","choices":[{"index":0,"text":" a"}],"usage":{"prompt_tokens":200,"completion_tokens":1},'
    b'"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],'
    b'"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}'
)
LOAD = load_report(kv_capacity_tokens=100_000_000, max_batch=4096)


class Engine(Connection):
    """One connection."""

    open_streams: ClassVar[int] = 0
    given_up: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._streaming = False
        self._left = 0
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._streaming:
            Engine.given_up += 1
            Engine.open_streams -= 1

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flood()

    def requested(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if head.startswith(b"get /held"):
            held = {"open": Engine.open_streams, "given_up": Engine.given_up}
            transport.write(whole(json.dumps(held).encode()))
        elif head.startswith(b"get"):
            transport.write(LOAD)
        elif b'"do_remote_decode":true' in body:
            transport.write(PREFILLED)
        elif b'"user":"idle"' in body:
            self._begin_stream(transport)
            self._tick()
        elif b'"user":"flood"' in body:
            self._begin_stream(transport)
            self._left = FLOOD_EVENTS
            self._flood()
        else:
            transport.write(LARGE if b'"user":"large"' in body else SHORT)

    def _begin_stream(self, transport: asyncio.Transport) -> None:
        self._streaming = True
        Engine.open_streams += 1
        transport.write(STREAM_HEAD)

    def _tick(self) -> None:
        if self.transport is not None:
            self.transport.write(EVENT)
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._tick)

    def _flood(self) -> None:
        while self._left and not self._paused and self.transport is not None:
            self._left -= 1
            self.transport.write(LARGE_EVENT)
            if not self._left:
                self.transport.write(STREAM_END)
                self._streaming = False
                Engine.open_streams -= 1


async def main(port: int, addresses: list[str]) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    for address in addresses:
        listener = socket.create_server((address, port), backlog=4096)
        # An engine's own node has its own kernel: what it would hold of a stream is not to weigh on this one's.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        await loop.create_server(Engine, sock=listener, backlog=4096)
    print("ready", flush=True)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))
