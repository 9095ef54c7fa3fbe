"""Clients that hold connections to a gateway and read little or nothing.

    held_load.py KIND COUNT PORT

KIND is `idle` (reads a stream in which hardly anything comes), `mute` (asks for a flood and reads
nothing), `drip` (the same, reading a byte a second), `large` (a large whole answer, of which nothing is read) or `pile`
(asks for the metrics a thousand times on one connection and reads nothing). Prints one JSON line when all have
asked (idle: have their first token) and one for every line on stdin: how many connections are still there.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import sys
import time

AT_ONCE = 32
USERS = {"idle": "idle", "mute": "flood", "drip": "flood", "large": "large"}


def request(kind: str, port: int) -> bytes:
    if kind == "pile":
        return f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode() * 1000
    body = json.dumps(
        {"model": "bench", "prompt": "hold this " * 20, "max_tokens": 200, "stream": kind != "large",
         "user": USERS[kind]},
        separators=(",", ":"),
    ).encode()  # fmt: skip
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Holder:
    """Many sockets, one thread."""

    def __init__(self, kind: str, port: int) -> None:
        self._kind = kind
        self._port = port
        self._request = request(kind, port)
        self._poll = select.epoll()
        self.held: dict[int, socket.socket] = {}
        self.lost = 0
        self.refused = 0
        """Answered with something else than 200."""
        self._waiting: dict[int, bytes] = {}
        """File descriptors whose first token has not come, with what has."""

    def open(self, count: int) -> None:
        """Open so many; idle ones a few at a time, until each has its first token."""
        for _ in range(count):
            client = socket.socket()
            if self._kind != "idle":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", self._port))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # a gateway that reads no further has asked enough
                client.send(self._request)
            number = client.fileno()
            self.held[number] = client
            self._poll.register(number, select.EPOLLRDHUP | (select.EPOLLIN if self._kind == "idle" else 0))
            if self._kind == "idle":
                self._waiting[number] = b""
            while len(self._waiting) >= AT_ONCE:
                self.look(1.0)
        deadline = time.monotonic() + 60
        while self._waiting and time.monotonic() < deadline:
            self.look(1.0)

    def look(self, seconds: float) -> None:
        """Read what should be read, and note which clients have been cut off."""
        for number, event in self._poll.poll(seconds):
            if event & select.EPOLLIN:
                with contextlib.suppress(OSError):
                    received = self.held[number].recv(65536)
                    if number in self._waiting:
                        self._waiting[number] += received
                        if b"data: " in self._waiting[number]:
                            del self._waiting[number]
                        elif received and not self._waiting[number].startswith(b"HTTP/1.1 200"):
                            self.refused += 1
            if event & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                self._poll.unregister(number)
                self.held.pop(number).close()
                self._waiting.pop(number, None)
                self.lost += 1

    def drip(self) -> None:
        for client in self.held.values():
            with contextlib.suppress(OSError):
                client.recv(1)

    def report(self) -> None:
        print(json.dumps({"held": len(self.held), "lost": self.lost, "refused": self.refused}), flush=True)


def main() -> None:
    kind, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    holder = Holder(kind, port)
    holder.open(count)
    holder.report()
    dripped_at = time.monotonic()
    while True:
        asked, _, _ = select.select([sys.stdin], [], [], 0.1)
        holder.look(0)
        if kind == "drip" and time.monotonic() - dripped_at >= 1.0:
            dripped_at = time.monotonic()
            holder.drip()
        if asked:
            if not sys.stdin.readline():
                return
            holder.report()


if __name__ == "__main__":
    main()
