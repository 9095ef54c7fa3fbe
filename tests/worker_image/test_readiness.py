"""The NIXL side channel's handshake against sockets that listen and do not answer."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from fulcrum_worker import readiness
from fulcrum_worker.readiness import not_ready_reason, side_channel_answers


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


async def test_each_rank_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    up = {("10.0.0.1", 5600), ("10.0.0.2", 5602)}

    async def answers(_session: object, _url: str) -> bool:
        return True

    async def shakes_hands(host: str, port: int) -> bool:
        return (host, port) in up

    monkeypatch.setattr(readiness, "engine_answers", answers)
    monkeypatch.setattr(readiness, "side_channel_answers", shakes_hands)
    channels = (("10.0.0.1", 5600), ("10.0.0.1", 5601), ("10.0.0.2", 5602))
    async with aiohttp.ClientSession() as session:
        reason = await not_ready_reason(session, "http://10.0.0.1:8000", channels)
        assert reason == "the NIXL side channel of rank 1 does not answer on 10.0.0.1:5601"
        assert await not_ready_reason(session, "http://10.0.0.1:8000", channels[:1]) is None
        alone = await not_ready_reason(session, "http://10.0.0.1:8000", channels[1:2])
        assert alone == "the NIXL side channel does not answer on 10.0.0.1:5601"
