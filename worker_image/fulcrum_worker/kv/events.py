"""What the engine says of its KV blocks, heard by its agent: what is where, and what was driven out.

vLLM publishes events over ZeroMQ (`vllm.distributed.kv_events`). They carry the tokens of prompts, so they go over a
socket in a folder that only this user can open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from fulcrum.api.worker import KvResidency

_BOTH: Final = ("GPU", "CPU")
"""vLLM's words for the engine's own KV cache, on whatever device, and for host memory."""
_DEVICE, _HOST = _BOTH


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[bytes | int]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]


_decoder: Final = msgspec.msgpack.Decoder(_Batch)


def events_config(socket: Path) -> str:
    """Return vLLM's `--kv-events-config` for events to the agent."""
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": _endpoint(socket)}
    return json.dumps(config, separators=(",", ":"))


def _endpoint(socket: Path) -> str:
    return f"ipc://{socket}"


class KvEvents:
    """Counts tokens by tier. Bounded by what the tiers hold: of the pool, which all workers share, nothing is kept."""

    def __init__(self) -> None:
        self._next = 0
        self._missed = 0
        self._held: dict[str, dict[tuple[int | None, bytes | int], int]] = {medium: {} for medium in _BOTH}
        self._block_tokens = 0
        """Of the device's blocks. Those in host memory are as large, and vLLM tells no size of them."""
        self._evicted = dict.fromkeys(_BOTH, 0)

    def take(self, sequence: int, payload: bytes) -> None:
        """Take in one batch. What was missed, or cannot be read, is counted: from then on residency is an estimate."""
        self._missed += max(sequence - self._next, 0)
        self._next = sequence + 1
        try:
            batch = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._missed += 1
            return
        for event in batch.events:
            if isinstance(event, _Cleared):
                self._held[_DEVICE].clear()
            elif event.medium in self._held:
                self._move(event.medium, event)

    def _move(self, medium: str, event: _Stored | _Removed) -> None:
        held = self._held[medium]
        if isinstance(event, _Stored):
            self._block_tokens = event.block_size or self._block_tokens
        for block in event.block_hashes:
            key = (event.group_idx, block)
            if isinstance(event, _Stored):
                held[key] = event.block_size or self._block_tokens
            else:
                self._evicted[medium] += held.pop(key, 0)

    def residency(self) -> KvResidency:
        """Return what is where now."""
        return KvResidency(
            device_tokens=sum(self._held[_DEVICE].values()),
            host_tokens=sum(self._held[_HOST].values()),
            device_evicted_tokens=self._evicted[_DEVICE],
            host_evicted_tokens=self._evicted[_HOST],
            missed_batches=self._missed,
        )

    async def follow(self, socket: Path) -> None:
        """Listen until cancelled."""
        import zmq
        import zmq.asyncio

        with zmq.asyncio.Context.instance().socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.subscribe(b"")
            subscriber.connect(_endpoint(socket))
            while True:
                _topic, sequence, payload = await subscriber.recv_multipart()
                self.take(int.from_bytes(sequence), payload)
