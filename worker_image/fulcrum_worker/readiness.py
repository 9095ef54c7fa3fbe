"""Whether an engine can serve: its API answers and its NIXL side channel shakes hands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec

_PROBE_TIMEOUT_SECONDS: Final = 2.0
_GET_META_MSG: Final = b"get_meta_msg"
"""What a NIXL peer asks first (vLLM 0.32.0, NixlConnector protocol 14): (message, pipeline rank, tensor rank)."""

SideChannel = tuple[str, int]
"""Host and port."""


async def engine_answers(session: aiohttp.ClientSession, engine_url: str) -> bool:
    """True when vLLM's API and the engine process behind it are up (`GET /health`)."""
    try:
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_SECONDS)
        async with session.get(f"{engine_url}/health", timeout=timeout) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def side_channel_answers(host: str, port: int) -> bool:
    """True when the NIXL side channel hands out its transfer metadata, as it does to a decode engine that connects.

    A TCP connect would not do: the socket listens before, and also after, the thread behind it can answer.
    """
    import zmq
    import zmq.asyncio

    with zmq.asyncio.Context.instance().socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(":" in host))
        socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                await socket.send(msgspec.msgpack.encode((_GET_META_MSG, 0, 0)))
                answer = await socket.recv_multipart()
        except TimeoutError:
            return False
        return bool(answer and answer[0])


async def not_ready_reason(
    session: aiohttp.ClientSession, engine_url: str, side_channels: Sequence[SideChannel] = ()
) -> str | None:
    """None when the engine can serve and be pulled from; else what is missing.

    `side_channels` are those of its ranks in their order; none: nothing is pulled from it.
    """
    if not await engine_answers(session, engine_url):
        return "the engine does not answer on /health"
    answers = await asyncio.gather(*(side_channel_answers(*channel) for channel in side_channels))
    for rank, (channel, answered) in enumerate(zip(side_channels, answers, strict=True)):
        if not answered:
            whose = f" of rank {rank}" if len(side_channels) > 1 else ""
            return f"the NIXL side channel{whose} does not answer on {channel[0]}:{channel[1]}"
    return None
