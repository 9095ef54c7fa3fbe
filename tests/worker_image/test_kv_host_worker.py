"""Our worker on real host memory: what is stored comes back, block for block; a cut leaves the rest alone."""

from __future__ import annotations

import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds

# Importing vLLM takes half a minute on a busy machine, so this runs with the tests that start it.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BLOCKS, CHUNKS, PAGES = 24, 16, (64, 128)
PACE_SECONDS = 0.2
"""Of a block over a slow link: a test that a busy machine holds up for twice that cuts a load where it means to."""


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fulcrum_worker.kv.host_worker  # noqa: F401


class Cache:
    """Two layers of KV in blocks of bytes, and the worker that copies them."""

    def __init__(self, per_chunk: int, pace: Callable[[int], float] | None = None) -> None:
        import torch
        from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

        from fulcrum_worker.kv.host_worker import HostWorker

        self.layers = [torch.randint(-128, 127, (BLOCKS, page), dtype=torch.int8) for page in PAGES]
        self.region = SharedOffloadRegion(
            engine_id=f"test-{uuid.uuid4()}",
            num_chunks=CHUNKS,
            rank=0,
            kv_bytes_per_chunk=4096,
            cpu_page_size=sum(PAGES) * per_chunk,
        )
        self.worker = HostWorker(
            CanonicalKVCaches(
                tensors=[
                    CanonicalKVCacheTensor(tensor=layer, page_size_bytes=page)
                    for layer, page in zip(self.layers, PAGES, strict=True)
                ],
                group_data_refs=[
                    [CanonicalKVCacheRef(tensor_idx=index, page_size_bytes=page) for index, page in enumerate(PAGES)]
                ],
            ),
            region=self.region,
            blocks_per_chunk=per_chunk,
            pace=pace,
        )

    def block(self, number: int) -> list[bytes]:
        return [layer[number].numpy().tobytes() for layer in self.layers]


@pytest.fixture
def cache() -> Iterator[Callable[..., Cache]]:
    made: list[Cache] = []

    def make(*args: Any) -> Cache:
        made.append(Cache(*args))
        return made[-1]

    yield make
    for each in made:
        each.worker.shutdown()
        assert not Path(each.region.mmap_path).exists()


def specs(blocks: list[int], chunks: list[int], first: int = 0) -> tuple[Any, Any]:
    from vllm.v1.kv_offload.base import GPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

    return GPULoadStoreSpec(blocks, group_sizes=[len(blocks)], block_indices=[first]), CPULoadStoreSpec(chunks)


@pytest.mark.parametrize("per_chunk", [1, 2, 3])
def test_what_is_stored_comes_back_into_other_blocks(cache: Callable[..., Cache], per_chunk: int) -> None:
    chance, tried = random.Random(per_chunk), cache(per_chunk)
    for job in range(0, 60, 2):
        count = chance.randint(1, BLOCKS // 2)
        first = chance.randrange(per_chunk)
        chunks = chance.sample(range(CHUNKS), -(-(count + first) // per_chunk))
        blocks = chance.sample(range(BLOCKS), 2 * count)
        source, target = blocks[:count], blocks[count:]
        stored = [tried.block(number) for number in source]
        on_device, on_host = specs(source, chunks, first)
        assert tried.worker.submit_store(job, on_device, on_host)
        tried.worker.wait({job})
        into, _ = specs(target, chunks, first)
        assert tried.worker.submit_load(job + 1, on_host, into)
        tried.worker.wait({job + 1})
        assert [tried.block(number) for number in target] == stored
        results = {result.job_id: result for result in tried.worker.get_finished()}
        assert set(results) == {job, job + 1}
        assert all(result.success and result.transfer_size == count * sum(PAGES) for result in results.values())


def test_a_cut_load_has_whole_blocks_at_the_end_and_none_before(cache: Callable[..., Cache]) -> None:
    tried = cache(1, lambda _: PACE_SECONDS)
    source, target = list(range(10)), list(range(10, 20))
    on_device, on_host = specs(source, source)
    tried.worker.submit_store(1, on_device, on_host)
    tried.worker.wait({1})
    before = [tried.block(number) for number in target]
    into, _ = specs(target, source)
    tried.worker.load_from_end(2, on_host, into)
    deadline = time.monotonic() + deadline_seconds(30)
    while (seen := tried.worker.progress()[2]).blocks < 3:
        assert time.monotonic() < deadline
        tried.worker.await_change(1.0)
    tried.worker.keep(2, 5)
    while not seen.finished:
        assert time.monotonic() < deadline
        tried.worker.await_change(1.0)
        seen = tried.worker.progress()[2]
    assert seen.blocks == 5
    assert [tried.block(number) for number in target[5:]] == [tried.block(number) for number in source[5:]]
    assert [tried.block(number) for number in target[:5]] == before[:5]
    assert tried.worker.progress() == {}, "an ended load is told of once"
    size, seconds = tried.worker.take_moved()
    assert size == 5 * sum(PAGES)
    assert seconds >= 5 * PACE_SECONDS
    assert tried.worker.take_moved() == (0, 0.0)


def test_a_shutdown_does_not_wait_for_a_slow_link(cache: Callable[..., Cache]) -> None:
    tried = cache(1, lambda _: 60.0)
    into, on_host = specs([1, 2, 3], [0, 1, 2])
    tried.worker.submit_load(1, on_host, into)
    began = time.monotonic()
    tried.worker.shutdown()
    assert time.monotonic() - began < deadline_seconds(5)
