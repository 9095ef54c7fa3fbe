"""The pool as vLLM's tier: what a volume does wrong costs time and is named; no block is lost and none is wrong."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.machine import deadline_seconds
from tests.worker_image.agents import wait_until
from tests.worker_image.pool_writer import key

from fulcrum_worker.kv.pool.block_file import HEADER_BYTES
from fulcrum_worker.kv.pool.store import BlockStore

# Importing vLLM takes half a minute on a busy machine, so this runs with the tests that start it.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROWS, ROW_BYTES = 32, 8192


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fulcrum_worker.kv.pool.tier  # noqa: F401


class Engine:
    """Host memory of one engine, and its tier."""

    def __init__(self, root: Path, *, namespace: str | None = "weights", blocks: int = 100) -> None:
        from fulcrum_worker.kv.pool.tier import PoolTier

        self.host = np.random.default_rng(7).integers(0, 255, (ROWS, ROW_BYTES), dtype=np.uint8)
        spec = SimpleNamespace(pool_namespace=namespace, config=SimpleNamespace(groups=(0,)))
        self.tier = PoolTier(spec, memoryview(self.host), "PoolTier", str(root), blocks * (ROW_BYTES + HEADER_BYTES))
        self.jobs = 0

    def job(self, rows: list[int], numbers: list[int], *, loads: bool) -> Any:
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.base import TransferJob

        self.jobs += 1
        return TransferJob(
            job_id=self.jobs,
            keys=[key(number) for number in numbers],
            chunk_ids=np.array(rows),
            is_promotion=loads,
            req_context=ReqContext(req_id=f"request-{self.jobs}"),
        )

    def finish(self, *, seconds: float = 20.0) -> Any:
        found: list[Any] = []

        def ended() -> bool:
            found.extend(self.tier.get_finished_jobs())
            return bool(found)

        wait_until(ended, seconds=seconds, what="the transfer ends")
        return found[0]

    def store(self, rows: list[int], numbers: list[int]) -> Any:
        self.tier.submit_store(self.job(rows, numbers, loads=False))
        return self.finish()

    def load(self, rows: list[int], numbers: list[int]) -> Any:
        self.tier.submit_load(self.job(rows, numbers, loads=True))
        return self.finish()

    def looks_up(self, number: int, request: str = "asks") -> str:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext

        context, seen = ReqContext(req_id=request), []

        def answered() -> bool:
            seen.append(self.tier.lookup(key(number), context))
            self.tier.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
            return seen[-1] is not LookupResult.RETRY

        wait_until(answered, seconds=20, what="the lookup is answered")
        self.tier.on_request_finished(context)
        return str(seen[-1].name)

    def counted(self, name: str) -> float:
        return float(sum(self.tier.get_stats().data["data"].get(name, {}).values()))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**changes: Any) -> Engine:
        made.append(Engine(tmp_path / "pool", **changes))
        return made[-1]

    yield make
    for each in made:
        each.tier.shutdown()


def test_what_one_engine_stored_another_one_loads(engine: Callable[..., Engine]) -> None:
    first, second = engine(), engine()
    assert first.store([3, 4, 5], [1, 2, 3]).success
    wanted = first.host[[3, 4, 5]].copy()
    second.host[:] = 0
    assert second.looks_up(2) == "HIT"
    assert second.looks_up(9) == "MISS"
    result = second.load([9, 8, 7], [1, 2, 3])
    assert result.success
    assert (second.host[[9, 8, 7]] == wanted).all()
    assert not second.host[[0, 1, 2, 3, 4, 5, 6, 10]].any(), "other rows are left alone"


def test_a_spoilt_block_is_left_out_and_counted(engine: Callable[..., Engine], tmp_path: Path) -> None:
    from fulcrum_worker.kv.pool.names import BAD_BLOCKS

    first, second = engine(), engine()
    first.store([0, 1, 2], [1, 2, 3])
    file = next((tmp_path / "pool").rglob(f"{key(2).hex()}.kv"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    second.host[:] = 0
    result = second.load([0, 1, 2], [1, 2, 3])
    assert not result.success
    assert set(result.successful_keys) == {key(1), key(3)}
    assert not second.host[1].any(), "nothing of it reached host memory"
    assert second.counted(BAD_BLOCKS) == 1
    assert not file.exists(), "it is written again when it is computed again"


@pytest.mark.parametrize(
    ("code", "problem"),
    [(errno.EROFS, "readOnly"), (errno.EACCES, "readOnly"), (errno.ENOSPC, "full"), (errno.ESTALE, "gone")],
)
def test_a_volume_that_takes_nothing_is_named_and_left_alone(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, code: int, problem: str
) -> None:
    from fulcrum_worker.kv.pool.names import DROPPED_BLOCKS

    first = engine()
    first.store([0], [1])
    calls = []

    def refuses(self: BlockStore, key: bytes, block: memoryview) -> bool:
        calls.append(key)
        raise OSError(code, "refused")

    monkeypatch.setattr(BlockStore, "write", refuses)
    assert not first.store([1], [2]).success
    assert first.tier.problem == problem
    assert not first.store([2, 3], [3, 4]).success
    assert len(calls) == 1, "it is not asked again at once"
    assert first.counted(DROPPED_BLOCKS) == 3
    assert first.looks_up(1) == "HIT", "what is there can still be read"


def test_a_volume_that_cannot_be_asked_is_gone(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine()
    first.store([0], [1])

    def fails(self: BlockStore, key: bytes) -> bool:
        raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as patched:
        patched.setattr(BlockStore, "has", fails)
        assert first.looks_up(1) == "MISS"
    assert first.tier.problem == "gone"
    assert first.looks_up(1, "next") == "MISS", "for a while it is not asked"


def test_a_volume_that_hangs_holds_up_no_request(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fulcrum_worker.kv.pool import tier as tier_module

    first, goes_on = engine(), threading.Event()
    first.store([0, 1], [1, 2])
    first.host[:] = 0
    monkeypatch.setattr(tier_module, "_TRANSFER_SECONDS", 0.3)
    monkeypatch.setattr(tier_module, "_LOOKUP_SECONDS", 0.3)
    real = BlockStore.read

    def hangs(self: BlockStore, key: bytes, into: memoryview) -> None:
        goes_on.wait(deadline_seconds(60))
        real(self, key, into)

    def hangs_too(self: BlockStore, key: bytes) -> bool:
        return goes_on.wait(deadline_seconds(60))

    monkeypatch.setattr(BlockStore, "read", hangs)
    result = first.load([5, 6], [1, 2])
    assert not result.success
    assert result.successful_keys is None
    assert first.tier.problem == "slow"
    goes_on.set()
    wait_until(lambda: first.tier.problem is None, seconds=20, what="the reads that hung come back")
    assert not first.host.any(), "what came too late reached no memory that others have by now"
    goes_on.clear()
    monkeypatch.setattr(BlockStore, "has", hangs_too)
    assert first.looks_up(1, "hangs") == "MISS"
    goes_on.set()


def test_too_much_that_waits_is_dropped(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    first, goes_on = engine(), threading.Event()
    real = BlockStore.write

    def slow(self: BlockStore, key: bytes, block: memoryview) -> bool:
        goes_on.wait(deadline_seconds(60))
        return real(self, key, block)

    monkeypatch.setattr(BlockStore, "write", slow)
    first.tier.submit_store(first.job([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], loads=False))
    dropped = first.store([6, 7, 8], [7, 8, 9])
    assert not dropped.success, "a quarter of host memory waits already"
    goes_on.set()
    assert first.finish().success


def test_an_engine_whose_kv_means_nothing_to_others_leaves_the_pool_alone(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    alone = engine(namespace=None)
    assert alone.looks_up(1) == "MISS"
    assert not alone.store([0], [1]).success
    assert alone.tier.problem == "unusable"
    assert not list(tmp_path.rglob("*.kv"))
