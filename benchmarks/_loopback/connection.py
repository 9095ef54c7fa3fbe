"""The server side of a connection on which requests come one at a time; enough of HTTP for a gateway's requests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import cast


class Connection(asyncio.Protocol, ABC):
    """Calls `requested` for each request. Base of the engines here."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._head = b""
        self._missing = 0
        """Bytes of the body that have not come, once the head has."""
        self.transport: asyncio.Transport | None = None

    @abstractmethod
    def requested(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        """A request came; `head` is in lower case."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if not self._head:
            received = b"".join((*self._pieces, data))
            end = received.find(b"\r\n\r\n")
            if end < 0:
                self._pieces = [received]
                return
            self._head = received[:end].lower()
            at = self._head.find(b"content-length:")
            self._missing = int(self._head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._pieces, data = [], received[end + 4 :]
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0 or self.transport is None:
            return
        head, body = self._head, b"".join(self._pieces)
        self._head, self._pieces = b"", []
        self.requested(self.transport, head, body)


def whole(body: bytes, content_type: bytes = b"application/json") -> bytes:
    """An answer that comes as one."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)


def chunk(body: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def load_report(*, kv_capacity_tokens: int, max_batch: int) -> bytes:
    """What the agent of a quick, idle worker answers."""
    return whole(
        b'{"role":"mixed","roleEpoch":0,"ready":true,"draining":false,"running":0,"waiting":0,"queuedPromptTokens":0,'
        b'"kvUsage":0.0,"kvHeldForPeers":0.0,"kvCapacityTokens":%d,"maxBatch":%d,"maxBatchedTokens":8192,"speed":'
        b'{"prefillA":1e-4,"prefillB":1e-7,"prefillC":0.0,"decodeA":1e-4,"decodeB":1e-6,"decodeC":1e-10}}'
        % (kv_capacity_tokens, max_batch)
    )


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
