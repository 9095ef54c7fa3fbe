"""A closed-loop load generator that does nothing but write requests and find the end of answers.

    load.py KIND CONCURRENCY REQUESTS PORT [PORT]

KIND is `whole`, `burst` or `paced` (streams). With two ports, each request is a prefill leg to the first and a decode
leg to the second: the same work without a gateway. Prints one JSON line: seconds, failures, latencies in microseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

PROMPT = "the quick brown fox jumps over the lazy dog " * 20
FIELDS: dict[str, dict[str, object]] = {
    "whole": {},
    "burst": {"stream": True},
    "paced": {"stream": True, "user": "paced"},
}
PREFILL: dict[str, object] = {"kv_transfer_params": {"do_remote_decode": True}}


def _request(fields: dict[str, object], port: int) -> bytes:
    body = json.dumps(
        {"model": "bench", "prompt": PROMPT, "max_tokens": 200, "temperature": 0, **fields}, separators=(",", ":")
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Sends a request, resolves when its answer is complete."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[bool] | None = None
        self._received = b""
        self._total = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(ok=False)

    def send(self, request: bytes) -> asyncio.Future[bool]:
        assert self._transport is not None
        self._received = b""
        self._total = -1
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if self._total == -1:
            self._received += data
            data = self._received
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = data[:end].lower()
            at = head.find(b"content-length:")
            self._total = end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if not head.startswith(b"http/1.1 200"):
                self._finish(ok=False)
                return
        elif self._total:
            self._received += data
        else:
            self._received = (self._received[-5:] + data)[-64:]
        if self._total:
            if len(self._received) >= self._total:
                self._finish(ok=True)
        elif self._received.endswith(b"0\r\n\r\n"):
            self._finish(ok=True)

    def _finish(self, *, ok: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(ok)


async def _client(steps: list[tuple[int, bytes]], left: list[int], latencies: list[float], failures: list[int]) -> None:
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for port, _ in steps]
    while left[0] > 0:
        left[0] -= 1
        began = time.perf_counter()
        for connection, (_, request) in zip(connections, steps, strict=True):
            if not await connection.send(request):
                failures[0] += 1
                return
        latencies.append((time.perf_counter() - began) * 1e6)


async def main() -> None:
    kind, concurrency, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ports = [int(port) for port in sys.argv[4:]]
    fields = FIELDS[kind]
    legs = [fields] if len(ports) == 1 else [PREFILL, fields]
    steps = [(port, _request(leg, port)) for port, leg in zip(ports, legs, strict=True)]
    left, failures = [requests], [0]
    latencies: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_client(steps, left, latencies, failures) for _ in range(concurrency)))
    seconds = time.perf_counter() - began
    latencies.sort()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "requests": len(latencies),
                "failures": failures[0],
                "p50": latencies[len(latencies) // 2] if latencies else 0.0,
                "p99": latencies[int(len(latencies) * 0.99)] if latencies else 0.0,
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main())
