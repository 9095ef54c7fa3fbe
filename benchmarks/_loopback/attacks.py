"""One hostile client, which does one thing for as long as it is told.

    attacks.py ATTACK PORT [SIZE ...]

Reads lines `SECONDS`; prints for each one JSON line: connections, megabytes sent, answers by status (0: the connection
was cut without one). Everything that it holds is closed when the time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import uvloop

MEBIBYTE = 1024 * 1024
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n"
SMUGGLED = (
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    b"Content-Length: 2, 2\r\n\r\n{}",
    b"Content-Length: +2\r\n\r\n{}",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
)
"""Heads of requests in which two readers could find unlike ends."""


@dataclass
class Attacker:
    """A client, and what it did."""

    port: int
    sizes: tuple[int, ...] = ()
    """How much of it, of attacks that ask for that."""
    connections: int = 0
    sent_bytes: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    async def open(self, *, receive_bytes: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.connections += 1
        made = socket.socket()
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=made, limit=MEBIBYTE if receive_bytes is None else receive_bytes)

    async def ask(self, *pieces: bytes) -> None:
        """Send a request on a connection of its own, and read to the end of the answer."""
        status = 0
        try:
            reader, writer = await self.open()
        except OSError:
            self.statuses[0] += 1
            return
        try:
            answer = asyncio.ensure_future(reader.read(64 * 1024))
            for piece in pieces:
                if answer.done():
                    break
                writer.write(piece)
                self.sent_bytes += len(piece)
                await writer.drain()
            status = int((await answer).split(b" ", 2)[1])
            while await reader.read(MEBIBYTE):
                pass
        except (OSError, IndexError, ValueError):
            pass
        finally:
            self.statuses[status] += 1
            writer.transport.abort()

    async def paced(self, per_second: float, requests: Iterator[tuple[bytes, ...]]) -> None:
        """So many requests a second, answered or not."""
        due = time.perf_counter()
        async with asyncio.TaskGroup() as running:
            for pieces in requests:
                running.create_task(self.ask(*pieces))
                due += 1 / per_second
                await asyncio.sleep(max(due - time.perf_counter(), 0))

    async def held(self, count: int, first: bytes, each: bytes, *, reads: bool = True) -> None:
        """So many connections, on each of which `first` is sent and then `each` once a second; cut ones come again."""
        async with asyncio.TaskGroup() as running:
            for number in range(count):
                running.create_task(self._hold(first, each, reads=reads))
                if number % 100 == 99:
                    await asyncio.sleep(0.01)

    async def _hold(self, first: bytes, each: bytes, *, reads: bool) -> None:
        while True:
            try:
                reader, writer = await self.open(receive_bytes=None if reads else 4096)
            except OSError:
                self.statuses[0] += 1
                await asyncio.sleep(1)
                continue
            try:
                writer.write(first)
                self.sent_bytes += len(first)
                while not (reads and reader.at_eof()) and not writer.transport.is_closing():
                    await asyncio.sleep(1)
                    writer.write(each)
                    self.sent_bytes += len(each)
            except OSError:
                pass
            finally:
                writer.transport.abort()
            self.statuses[0] += 1


def body(**fields: object) -> bytes:
    """A request with a length."""
    text = json.dumps({"model": "bench", **fields}, separators=(",", ":")).encode()
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


@functools.cache
def image() -> bytes:
    """6 MB as base64."""
    url = "data:image/png;base64," + "iVBORw0KGgo" * 540_000
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return body(messages=[{"role": "user", "content": parts}], max_tokens=16).replace(
        b"/v1/completions", b"/v1/chat/completions", 1
    )


@functools.cache
def long_prompt() -> bytes:
    """7 MB of words."""
    return body(prompt="the quick brown fox " * 350_000, max_tokens=16)


@functools.cache
def fields() -> bytes:
    """600,000 fields."""
    return body(**{f"f{number}": 1 for number in range(600_000)}, prompt="a", max_tokens=16)


@functools.cache
def brackets() -> bytes:
    """4 million opened brackets."""
    text = b'{"model":"bench","prompt":' + b"[" * 4_000_000 + b"]" * 3_900_000
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


@functools.cache
def lists() -> bytes:
    """2.6 million empty lists, and a pair of surrogates, for which strings have to be looked into."""
    return body(prompt="a", max_tokens=16, user="\U0001f600", x=[[]] * 2_600_000)


@functools.cache
def parts() -> bytes:
    """A chat of 2.6 million empty parts."""
    content = [{"type": "text", "text": "a"}, *[{}] * 2_600_000]
    return body(messages=[{"role": "user", "content": content}], max_tokens=16).replace(
        b"/v1/completions", b"/v1/chat/completions", 1
    )


async def nothing(_: Attacker) -> None:
    """No attack: what two quiet periods differ by."""
    await asyncio.Event().wait()


async def trailers(attacker: Attacker) -> None:
    """50 MiB of trailers behind an empty body, twice a second."""
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    piece = b"x: " + b"a" * MEBIBYTE + b"\r\n"
    await attacker.paced(2, itertools.repeat((start, *[piece] * 50)))


async def small_chunks(attacker: Attacker) -> None:
    """Bodies of 8 MiB in chunks of one byte, 4 a second."""
    piece = b"1\r\nx\r\n" * (MEBIBYTE // 6)
    await attacker.paced(4, itertools.repeat((HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[piece] * 48)))


async def smuggling(attacker: Attacker) -> None:
    """Requests that hide another one, 200 a second."""
    heads = itertools.cycle(SMUGGLED)
    await attacker.paced(200, ((HEAD + each + HIDDEN,) for each in heads))


async def stream_interval(attacker: Attacker) -> None:
    """Streams of 16,000 tokens in events of 1,000, 10 a second."""
    request = body(prompt="a", max_tokens=16_000, stream=True, stream_interval=1000)
    await attacker.paced(10, itertools.repeat((request,)))


async def images(attacker: Attacker) -> None:
    """Chat requests with an image of 6 MB as base64, 2 a second."""
    await attacker.paced(2, itertools.repeat((image(),)))


async def long_prompts(attacker: Attacker) -> None:
    """Prompts of 7 MB, 2 a second."""
    await attacker.paced(2, itertools.repeat((long_prompt(),)))


async def many_fields(attacker: Attacker) -> None:
    """Bodies of 600,000 fields, 7 MB, 2 a second."""
    await attacker.paced(2, itertools.repeat((fields(),)))


async def deep_json(attacker: Attacker) -> None:
    """Bodies of 4 million opened brackets, 2 a second."""
    await attacker.paced(2, itertools.repeat((brackets(),)))


async def many_lists(attacker: Attacker) -> None:
    """Bodies of 2.6 million empty lists with a pair of surrogates, 8 MB, 2 a second."""
    await attacker.paced(2, itertools.repeat((lists(),)))


async def many_parts(attacker: Attacker) -> None:
    """Chats of 2.6 million empty parts, 8 MB, 2 a second."""
    await attacker.paced(2, itertools.repeat((parts(),)))


async def crashes(attacker: Attacker) -> None:
    """Requests at which every engine answers 500, 20 a second."""
    await attacker.paced(20, itertools.repeat((body(prompt="a", max_tokens=16, user="crash"),)))


async def slow_heads(attacker: Attacker) -> None:
    """500 connections on which a head comes by a byte a second."""
    await attacker.held(500, HEAD + b"X-A: ", b"a")


async def slow_bodies(attacker: Attacker) -> None:
    """500 connections on which a body of 1 MB comes by a byte a second."""
    await attacker.held(500, HEAD + b'Content-Length: 1000000\r\n\r\n{"prompt":"', b"a")


async def slow_readers(attacker: Attacker) -> None:
    """50 connections that ask for a stream of 3 MB and read nothing."""
    request = body(prompt="a", max_tokens=200, stream=True, user="flood")
    await attacker.held(50, request, b"", reads=False)


async def idle(attacker: Attacker) -> None:
    """4,000 connections on which nothing comes."""
    await attacker.held(4000, b"", b"")


async def full_house(attacker: Attacker) -> None:
    """As many idle connections as the first size says, and unfinished heads as the second."""
    idle_connections, heads = attacker.sizes
    await asyncio.gather(attacker.held(idle_connections, b"", b""), attacker.held(heads, HEAD + b"X-A: ", b""))


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        nothing, trailers, small_chunks, smuggling, stream_interval, images, long_prompts, many_fields, deep_json,
        many_lists, many_parts, crashes, slow_heads, slow_bodies, slow_readers, idle, full_house,
    )
}  # fmt: skip


async def main(name: str, port: int, *sizes: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await ATTACKS[name](
                Attacker(port, sizes)
            )  # makes what it sends, so that this takes no time of the first period
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        attacker = Attacker(port, sizes)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(line)):
                await ATTACKS[name](attacker)
        report = {
            "connections": attacker.connections,
            "megabytes": attacker.sent_bytes / 1e6,
            "statuses": {str(status): count for status, count in sorted(attacker.statuses.items())},
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], *map(int, sys.argv[2:])))
