"""The NIXL side channel's handshake against sockets that listen and do not answer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import zmq
import zmq.asyncio

from fulcrum_worker import readiness
from fulcrum_worker.readiness import side_channel_answers


async def test_nobody_listens(unused_tcp_port: int) -> None:
    assert not await side_channel_answers("127.0.0.1", unused_tcp_port)


async def test_a_listener_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PROBE_TIMEOUT_SECONDS", 0.3)
    with zmq.asyncio.Context.instance().socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        assert not await side_channel_answers("127.0.0.1", port)


async def test_a_handshake_as_vllm_answers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PROBE_TIMEOUT_SECONDS", 60.0)  # a busy machine is no silent peer
    with zmq.asyncio.Context.instance().socket(zmq.ROUTER) as peer:
        port = peer.bind_to_random_port("tcp://127.0.0.1")

        async def answer() -> None:
            identity, empty, message = await peer.recv_multipart()
            assert msgspec.msgpack.decode(message) == [b"get_meta_msg", 0, 0]
            await peer.send_multipart((identity, empty, b"metadata", b"clock"))

        answering = asyncio.create_task(answer())
        assert await side_channel_answers("127.0.0.1", port)
        await answering
