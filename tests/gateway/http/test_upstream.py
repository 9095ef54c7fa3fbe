"""A connection that is used again knows nothing of the stream before."""

from __future__ import annotations

import asyncio

from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.upstream import UpstreamConnection
from fulcrum.gateway.http.upstream_answer import StreamSource

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: 1\n\n\r\n"


class Wire(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Sink:
    def holds(self, first_chunks: bytes) -> bool:
        return False

    def fails_at_once(self, first_chunks: bytes) -> bool:
        return False

    def stream_begin(self, source: StreamSource) -> None:
        source.stall_seconds = 15.0

    def stream_bytes(self, chunks: bytes) -> None:
        pass

    def stream_last(self, chunks: bytes) -> None:
        pass


async def test_a_stream_is_not_taken_for_the_one_before_that_was_as_long() -> None:
    connection = UpstreamConnection(
        asyncio.get_running_loop(),
        released=lambda _: None,
        lost=lambda _: None,
        still=lambda *_: True,
        response_budget=ResponseBudget(),
    )
    connection.connection_made(Wire())
    first = connection.exchange(b"", Sink(), deadline=1e9)
    connection.data_received(HEAD + EVENT)
    connection.check(100.0)
    connection.data_received(b"0\r\n\r\n")
    assert (await first).streamed
    second = connection.exchange(b"", Sink(), deadline=1e9)
    connection.data_received(HEAD + EVENT)
    connection.check(200.0)
    assert not second.done()
    connection.check(214.0)
    assert not second.done()
    connection.check(216.0)
    assert second.exception() is not None
