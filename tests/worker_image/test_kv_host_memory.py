"""Host memory of the tier: what does not fit is refused, and what a killed engine left is removed."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from tests.worker_image.agents import worker_config

from fulcrum.api.worker import KvCacheConfig, OffloadConfig, WorkerConfig
from fulcrum_worker.config import BadConfigError, check_host_memory
from fulcrum_worker.memory import memory_limit_bytes, shm_bytes
from fulcrum_worker.orphans import remove_orphans

GIBIBYTE = 1 << 30


def tiered(host_bytes: int = 4 * GIBIBYTE) -> WorkerConfig:
    return worker_config(kv_cache=KvCacheConfig(offload=OffloadConfig(host_bytes=host_bytes)))


@pytest.mark.parametrize(
    ("shm", "limit", "message"),
    [
        (64 << 20, None, "more than /dev/shm holds"),
        (4 * GIBIBYTE - 1, 64 * GIBIBYTE, "more than /dev/shm holds"),
        (8 * GIBIBYTE, 4 * GIBIBYTE, "raise spec.pools[].resources.limits.memory"),
        (None, GIBIBYTE, "the container's memory limit"),
    ],
)
def test_more_than_there_is_is_refused(shm: int | None, limit: int | None, message: str) -> None:
    with pytest.raises(BadConfigError, match=r"spec\.engine\.kvCache\.offload\.hostMemory") as refused:
        check_host_memory(tiered(), shm_bytes=shm, limit_bytes=limit)
    assert message in str(refused.value)


@pytest.mark.parametrize(("shm", "limit"), [(None, None), (4 * GIBIBYTE, None), (8 * GIBIBYTE, 8 * GIBIBYTE)])
def test_what_fits_or_is_unknown_goes_on(shm: int | None, limit: int | None) -> None:
    check_host_memory(tiered(), shm_bytes=shm, limit_bytes=limit)


def test_without_a_tier_nothing_is_asked() -> None:
    check_host_memory(worker_config(), shm_bytes=0, limit_bytes=1)


@pytest.mark.parametrize(("text", "expected"), [("max\n", None), ("1048576\n", 1 << 20), ("9223372036854771712", None)])
def test_a_limit_is_read_as_the_kernel_writes_it(tmp_path: Path, text: str, expected: int | None) -> None:
    file = tmp_path / "memory.max"
    file.write_text(text)
    assert memory_limit_bytes((tmp_path / "absent", file)) == expected


def test_no_limit_can_be_read(tmp_path: Path) -> None:
    assert memory_limit_bytes((tmp_path / "absent",)) is None
    assert shm_bytes(tmp_path / "absent") is None
    assert (shm_bytes(tmp_path) or 0) > 0


@pytest.mark.parametrize("name", ["vllm_offload_a.mmap", "psm_1a2b", "nccl-x", "nvshmem-shm0"])
def test_only_files_that_no_process_has_open_or_mapped_are_removed(tmp_path: Path, name: str) -> None:
    ours, other = tmp_path / name, tmp_path / "of-another-program"
    for file in (ours, other):
        file.write_bytes(b"x")
    with ours.open("rb") as opened:
        assert remove_orphans(shm=tmp_path) == []
        mapped = mmap.mmap(opened.fileno(), 1, access=mmap.ACCESS_READ)
    with mapped:
        assert remove_orphans(shm=tmp_path) == []
    assert remove_orphans(shm=tmp_path) == [ours]
    assert [*tmp_path.iterdir()] == [other]
    assert remove_orphans(shm=tmp_path) == []
