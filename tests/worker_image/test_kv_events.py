"""The engine's KV events: residency and evictions, by vLLM's own events and by a real engine."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.machine import deadline_seconds
from tests.worker_image.agents import worker_config
from tests.worker_image.test_kv_policy import POD, tiered

from fulcrum.api.worker import KvResidency
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.kv.events import KvEvents


def stored(*blocks: bytes, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": list(blocks), "parent_block_hash": None, "token_ids": [1] * 16,
        "block_size": 16, "lora_id": None, "medium": medium, "lora_name": None, **more,
    }  # fmt: skip


def removed(*blocks: bytes, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": medium, **more}


def payload(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def residency(*batches: bytes) -> KvResidency:
    events = KvEvents()
    for number, batch in enumerate(batches):
        events.take(number, batch)
    return events.residency()


def test_blocks_are_counted_by_tier() -> None:
    found = residency(
        payload(stored(b"a", b"b"), stored(b"a", medium="CPU", block_size=0)),
        payload(stored(b"a"), removed(b"b", b"unknown"), stored(b"s", medium="STORAGE")),
        payload(removed(b"a", medium="CPU")),
    )
    assert found == KvResidency(
        device_tokens=16, host_tokens=0, device_evicted_tokens=16, host_evicted_tokens=16, missed_batches=0
    )


def test_groups_of_layers_are_apart_and_a_reset_empties_the_device() -> None:
    two = payload(stored(b"a", group_idx=0), stored(b"a", group_idx=1), stored(b"c", medium="CPU"))
    assert residency(two, payload(removed(b"a", group_idx=1))).device_tokens == 16
    found = residency(two, payload({"type": "AllBlocksCleared"}))
    assert (found.device_tokens, found.host_tokens, found.device_evicted_tokens) == (0, 16, 0)


@pytest.mark.parametrize("bad", [b"", b"\xff", payload({"type": "OfAnotherRelease"}), payload({"type": "BlockStored"})])
def test_what_is_missed_or_cannot_be_read_is_counted(bad: bytes) -> None:
    assert residency(bad, payload(stored(b"a"))).missed_batches == 1
    events = KvEvents()
    events.take(0, payload(stored(b"a")))
    events.take(4, payload(stored(b"b")))
    assert events.residency().missed_batches == 3


def test_vllm_publishes_what_is_read_here() -> None:
    """By vLLM's own classes."""
    kv_events = pytest.importorskip("vllm.distributed.kv_events")
    batch = kv_events.KVEventBatch(
        ts=1.0,
        events=[
            kv_events.BlockStored(
                block_hashes=[b"a", 7], parent_block_hash=None, token_ids=[1] * 32, block_size=16, lora_id=None,
                medium=kv_events.MEDIUM_GPU, lora_name=None, group_idx=0,
            ),
            kv_events.BlockRemoved(block_hashes=[7], medium=kv_events.MEDIUM_GPU, group_idx=0),
        ],
    )  # fmt: skip
    found = residency(msgspec.msgpack.encode(batch))
    assert (found.device_tokens, found.device_evicted_tokens, found.missed_batches) == (16, 16, 0)


async def test_vllms_publisher_is_heard_and_its_host_blocks_counted() -> None:
    """vLLM's own publisher and translation of host memory's events, which tells no size of a block."""
    kv_events = pytest.importorskip("vllm.distributed.kv_events")
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventsTracker
    from vllm.v1.kv_offload.base import Medium, OffloadingEvent, OffloadingKVEventsConfig, make_offload_key

    on_device = kv_events.BlockStored(
        block_hashes=[b"a"], parent_block_hash=None, token_ids=[1] * 32, block_size=32, lora_id=None,
        medium=kv_events.MEDIUM_GPU, lora_name=None, group_idx=0,
    )  # fmt: skip
    tracker = OffloadingEventsTracker(
        OffloadingKVEventsConfig(enable_kv_cache_events=True, self_describing_kv_events=False)
    )
    keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(3)]
    in_host = list(
        tracker.take_events(
            [
                OffloadingEvent(keys=keys, medium=Medium.CPU, removed=False),
                OffloadingEvent(keys=keys[:1], medium=Medium.CPU, removed=True),
            ]
        )
    )
    with tempfile.TemporaryDirectory() as name:
        files = EngineFiles(Path(name))
        events = KvEvents()
        following = asyncio.create_task(events.follow(files.events))
        publisher = kv_events.ZmqEventPublisher(0, endpoint=f"ipc://{files.events}")
        try:
            async with asyncio.timeout(deadline_seconds(60)):
                # A subscriber that has not joined yet misses what is published; that is counted, too.
                while events.residency().device_tokens == 0:
                    publisher.publish(kv_events.KVEventBatch(ts=1.0, events=[on_device]))
                    await asyncio.sleep(0.05)
                publisher.publish(kv_events.KVEventBatch(ts=2.0, events=in_host))
                while events.residency().host_evicted_tokens == 0:  # noqa: ASYNC110  (vLLM's thread)
                    await asyncio.sleep(0.05)
        finally:
            publisher.shutdown()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    found = events.residency()
    assert (found.device_tokens, found.host_tokens, found.host_evicted_tokens) == (32, 64, 32)


def test_events_go_over_a_file_and_only_with_tiers(tmp_path: Path) -> None:
    def argv(config: Any, files: EngineFiles | None) -> tuple[str, ...]:
        return engine_command(config, POD, model=None, environment={}, vllm="0.32.0", files=files).argv

    told = argv(tiered("load"), EngineFiles(tmp_path))
    asked = told[told.index("--kv-events-config") + 1]
    assert f'"endpoint":"ipc://{tmp_path}/kv-events"' in asked
    assert "--kv-events-config" not in argv(tiered("load"), None)
    assert "--kv-events-config" not in argv(worker_config(), EngineFiles(tmp_path))
