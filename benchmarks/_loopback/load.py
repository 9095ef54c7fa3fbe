"""A load generator that does nothing but write requests and find the end of answers.

    load.py KIND CONCURRENCY REQUESTS [--rate PER_SECOND] PORT [PORT]

KIND is `whole`, `burst`, `paced` or `held` (streams). Without a rate each of CONCURRENCY clients asks again when it was
answered; with one, requests come at random times whatever the answers do, and latencies count from when they should
have been sent. With two ports, each request is a prefill leg to the first and a decode leg to the second: the same work
without a gateway. Prompts are of 0.1 to 6 KB, 1 KB on average: four of ten begin with one of four system prompts, two
of ten are turns of a conversation that was begun before. Classes are mixed, too. Prints one JSON line: seconds,
failures, latencies in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import cast

import uvloop

KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "burst": {"stream": True},
    "paced": {"stream": True, "user": "paced"},
    "held": {"stream": True, "user": "held"},
}
PREFILL: dict[str, object] = {"kv_transfer_params": {"do_remote_decode": True}}
TEMPLATES = 512
SYSTEM_PROMPTS = 4
CONVERSATIONS = 32
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "it", "rains", "in", "Spain")
NUMBER = "@@@@@@@@"
"""Stands in a prompt where each request has another number."""


def prompts() -> list[str]:
    """Prompts, the same in every run."""
    chance = random.Random(11)

    def text(size: float) -> str:
        return " ".join(chance.choices(WORDS, k=max(int(size / 4.4), 5)))

    systems = [text(chance.uniform(500, 1200)) for _ in range(SYSTEM_PROMPTS)]
    turns = [text(300) for _ in range(CONVERSATIONS)]
    made = []
    for number in range(TEMPLATES):
        size = min(max(chance.lognormvariate(6.5, 0.8), 100), 5000)
        if number % 10 < 4:
            made.append(f"{systems[number % SYSTEM_PROMPTS]} {NUMBER} {text(min(size, 400))}")
        elif number % 10 < 6:
            which = number % CONVERSATIONS
            turns[which] = f"{turns[which]} {text(200)}"[-6000:]
            made.append(turns[which])
        else:
            made.append(f"{NUMBER} {text(size)}")
    chance.shuffle(made)
    return made


def requests(fields: dict[str, object], port: int) -> Iterator[bytes]:
    """Requests without end."""
    templates = []
    for number, prompt in enumerate(prompts()):
        body = json.dumps(
            {"model": "bench", "prompt": prompt, "max_tokens": 200, "temperature": 0, **fields}, separators=(",", ":")
        ).encode()
        tier = ("", "X-Tier: premium\r\n", "X-Tier: standard\r\n", "")[number % 4]
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n{tier}"
        before, _, after = body.partition(NUMBER.encode())
        templates.append((f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + before, after))
    for number, (before, after) in enumerate(itertools.cycle(templates)):
        yield b"%b%08d%b" % (before, number, after) if after else before


class Connection(asyncio.Protocol):
    """Sends a request, resolves when its answer is complete."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[bool] | None = None
        self._received = b""
        self._total = -1

    @property
    def closed(self) -> bool:
        """The other side has ended it."""
        return self._transport is None or self._transport.is_closing()

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


class Client:
    """A connection for each leg."""

    def __init__(self, legs: list[tuple[int, Iterator[bytes]]]) -> None:
        self._legs = legs
        self.connections: list[Connection] = []

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for port, _ in self._legs:
            self.connections.append((await loop.create_connection(Connection, "127.0.0.1", port))[1])

    async def ask(self) -> bool:
        for connection, (_, texts) in zip(self.connections, self._legs, strict=True):
            if not await connection.send(next(texts)):
                return False
        return True


class Load:
    """One run."""

    def __init__(self, kind: str, ports: list[int]) -> None:
        fields = [KINDS[kind]] if len(ports) == 1 else [PREFILL, KINDS[kind]]
        self._legs = [(port, requests(leg, port)) for port, leg in zip(ports, fields, strict=True)]
        self.latencies: list[float] = []
        self.failures = 0

    async def closed(self, concurrency: int, count: int) -> None:
        left = [count]

        async def client() -> None:
            one = Client(self._legs)
            await one.connect()
            while left[0] > 0:
                left[0] -= 1
                if not await self._timed(one, time.perf_counter()):
                    return

        await asyncio.gather(*(client() for _ in range(concurrency)))

    async def open(self, rate: float, count: int) -> None:
        chance = random.Random(7)
        idle: list[Client] = []
        for _ in range(64):
            idle.append(Client(self._legs))
            await idle[-1].connect()
        running: set[asyncio.Task[None]] = set()

        async def one(due: float) -> None:
            client = idle.pop() if idle else Client(self._legs)
            if not client.connections:
                await client.connect()
            if await self._timed(client, due):
                idle.append(client)

        due = time.perf_counter()
        for _ in range(count):
            due += chance.expovariate(rate)
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            task = asyncio.create_task(one(due))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _timed(self, client: Client, began: float) -> bool:
        good = await client.ask()
        if good:
            self.latencies.append((time.perf_counter() - began) * 1e6)
        else:
            self.failures += 1
        return good


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("concurrency", type=int)
    parser.add_argument("requests", type=int)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    load = Load(options.kind, options.ports)
    began = time.perf_counter()
    if options.rate:
        await load.open(options.rate, options.requests)
    else:
        await load.closed(options.concurrency, options.requests)
    seconds = time.perf_counter() - began
    latencies = sorted(load.latencies)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "requests": len(latencies),
                "failures": load.failures,
                "p50": latencies[len(latencies) // 2] if latencies else 0.0,
                "p99": latencies[int(len(latencies) * 0.99)] if latencies else 0.0,
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main())
