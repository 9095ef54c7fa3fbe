"""Copies KV between an engine's cache and host memory on CPUs, where vLLM 0.32.0 has no worker of its own.

Two threads, one for each direction, copy block by block. Loads that `load_from_end` begins can be cut between two
blocks: the blocks that are there by then are whole.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

Pace = Callable[[int], float]
"""Bytes -> least seconds that their copy takes. For tests of slow links; an engine's own spec never passes one."""

_JOIN_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Move:
    """One block: a row of the engine's cache and a part of a row of host memory, in the tensors of its KV group."""

    group: int
    block: int
    chunk: int
    part: int


@dataclass(slots=True)
class _Job:
    job_id: int
    moves: list[_Move]
    """In the order in which they are copied."""
    cuttable: bool = False
    keep: int = 0
    """Moves that are wanted; a cut lowers it."""
    done: int = 0
    size: int = 0
    seconds: float = 0.0
    finished: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load from the end of a prefix has come."""

    blocks: int
    """Blocks that are in the cache, counted from the end."""
    finished: bool
    """Nothing more will be written."""
    size: int
    """Bytes."""
    seconds: float
    """Time that the link was busy with them."""


class _Direction:
    """One thread with a queue of jobs, in order of submission."""

    def __init__(
        self, name: str, copy: Callable[[_Move], int], changed: threading.Condition, pace: Pace | None
    ) -> None:
        self._copy = copy
        self._changed = changed
        self._pace = pace
        self._queue: deque[_Job] = deque()
        self._closed = False
        self.moved = (0, 0.0)
        """Bytes and busy seconds since the last look."""
        self._thread = threading.Thread(target=self._run, name=f"kv-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: _Job) -> None:
        with self._changed:
            self._queue.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                job = self._queue[0]
            self._transfer(job)
            with self._changed:
                self._queue.popleft()
                job.finished = True
                self._changed.notify_all()

    def _transfer(self, job: _Job) -> None:
        if self._pace is None and not job.cuttable:
            self._transfer_whole(job)
            return
        while True:
            with self._changed:
                if job.done >= job.keep or self._closed:
                    return
                # A cut waits for this lock: after it, nothing below the cut is written.
                began = time.monotonic()
                size = self._copy(job.moves[job.done])
                if self._pace is None:
                    self._advance(job, size, time.monotonic() - began)
                    continue
                ends = began + self._pace(size)
                while (left := ends - time.monotonic()) > 0 and not self._closed and job.done < job.keep:
                    self._changed.wait(left)
                if job.done < job.keep:
                    self._advance(job, size, time.monotonic() - began)

    def _transfer_whole(self, job: _Job) -> None:
        """Copy without the lock, for which the engine would wait at each step."""
        began, size = time.monotonic(), 0
        for move in job.moves:
            if self._closed:
                return
            size += self._copy(move)
        with self._changed:
            self._advance(job, size, time.monotonic() - began, blocks=len(job.moves))

    def _advance(self, job: _Job, size: int, seconds: float, *, blocks: int = 1) -> None:
        job.done += blocks
        job.size += size
        job.seconds += seconds
        self.moved = (self.moved[0] + size, self.moved[1] + seconds)
        if job.cuttable:
            self._changed.notify_all()


class HostWorker(OffloadingWorker):
    """vLLM's interface of a worker for one medium, and `load_from_end` for front recomputation."""

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        *,
        region: SharedOffloadRegion,
        blocks_per_chunk: int,
        pace: Pace | None = None,
    ) -> None:
        """Take over `region`, whose memory is freed by `shutdown`."""
        self._region = region
        self._per_chunk = blocks_per_chunk
        self._pages = [tensor.page_size_bytes for tensor in kv_caches.tensors]
        self._cache: list[Any] = [tensor.tensor.numpy() for tensor in kv_caches.tensors]
        self._host: list[Any] = [
            region.create_next_worker_view(page * blocks_per_chunk).numpy() for page in self._pages
        ]
        self._refs = [[(ref.tensor_idx, ref.page_size_bytes) for ref in group] for group in kv_caches.group_data_refs]
        self._changed = threading.Condition()
        self._stores = _Direction("store", self._store, self._changed, None)
        self._loads = _Direction("load", self._load, self._changed, pace)
        self._open: dict[int, _Job] = {}
        self._from_end: dict[int, _Job] = {}

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec) -> bool:
        """Copy blocks of the cache to host memory."""
        return self._submit(self._stores, _job(job_id, self._moves(src_spec, dst_spec)))

    def submit_load(self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copy blocks of host memory to the cache."""
        return self._submit(self._loads, _job(job_id, self._moves(dst_spec, src_spec)))

    def load_from_end(self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec) -> None:
        """Load the last block first, until all are there or `keep` says that no more are wanted."""
        job = _job(job_id, list(reversed(list(self._moves(dst_spec, src_spec)))), cuttable=True)
        self._from_end[job_id] = job
        self._loads.submit(job)

    def keep(self, job_id: int, blocks: int) -> None:
        """Load at most the last `blocks` blocks: once this returns, no block before them is written to."""
        job = self._from_end.get(job_id)
        if job is None:
            return
        with self._changed:
            job.keep = min(job.keep, max(blocks, 0))
            self._changed.notify_all()

    def progress(self) -> dict[int, LoadProgress]:
        """How far each load from the end has come; finished ones are told of once."""
        if not self._from_end:
            return {}
        with self._changed:
            told = {
                job_id: LoadProgress(blocks=job.done, finished=job.finished, size=job.size, seconds=job.seconds)
                for job_id, job in self._from_end.items()
            }
        for job_id, each in told.items():
            if each.finished:
                del self._from_end[job_id]
        return told

    def take_moved(self) -> tuple[int, float]:
        """Bytes loaded since the last call, and the seconds that the link was busy with them."""
        if not self._loads.moved[0]:
            return 0, 0.0
        with self._changed:
            moved, self._loads.moved = self._loads.moved, (0, 0.0)
        return moved

    def await_change(self, seconds: float) -> None:
        """Wait until something is copied, at most this long; return at once where nothing is under way."""
        with self._changed:
            if any(not job.finished for job in (*self._open.values(), *self._from_end.values())):
                self._changed.wait(seconds)

    def get_finished(self) -> list[TransferResult]:
        """Return each whole transfer that ended since the last call."""
        if not self._open:
            return []
        with self._changed:
            ended = [job for job in self._open.values() if job.finished]
        for job in ended:
            del self._open[job.job_id]
        return [
            TransferResult(job_id=job.job_id, success=True, transfer_size=job.size, transfer_time=job.seconds)
            for job in ended
        ]

    def wait(self, job_ids: set[int]) -> None:
        """Wait until these transfers have ended."""
        with self._changed:
            while any(not self._open[job_id].finished for job_id in job_ids if job_id in self._open):
                self._changed.wait()

    def shutdown(self) -> None:
        """Stop between two blocks and give the memory back."""
        self._loads.close()
        self._stores.close()
        self._cache.clear()
        self._host.clear()
        self._region.cleanup()

    def _submit(self, direction: _Direction, job: _Job) -> bool:
        self._open[job.job_id] = job
        direction.submit(job)
        return True

    def _moves(self, cache: GPULoadStoreSpec, host: CPULoadStoreSpec) -> Iterator[_Move]:
        """Pair the blocks of the cache with parts of host chunks, group by group, as vLLM's own worker does."""
        blocks: Sequence[int] = cache.block_ids.tolist()
        chunks: Sequence[int] = host.block_ids.tolist()
        block_offset = chunk_offset = 0
        for group, (count, first) in enumerate(zip(cache.group_sizes, cache.block_indices, strict=True)):
            skipped = first % self._per_chunk
            for index in range(count):
                chunk, part = divmod(skipped + index, self._per_chunk)
                yield _Move(group, blocks[block_offset + index], chunks[chunk_offset + chunk], part)
            block_offset += count
            chunk_offset += -(-(count + skipped) // self._per_chunk) if count else 0

    def _store(self, move: _Move) -> int:
        for tensor, page in self._refs[move.group]:
            at = move.part * self._pages[tensor]
            np.copyto(self._host[tensor][move.chunk, at : at + page], self._cache[tensor][move.block, :page])
        return sum(page for _, page in self._refs[move.group])

    def _load(self, move: _Move) -> int:
        for tensor, page in self._refs[move.group]:
            at = move.part * self._pages[tensor]
            np.copyto(self._cache[tensor][move.block, :page], self._host[tensor][move.chunk, at : at + page])
        return sum(page for _, page in self._refs[move.group])


def _job(job_id: int, moves: Iterator[_Move] | list[_Move], *, cuttable: bool = False) -> _Job:
    listed = list(moves)
    return _Job(job_id=job_id, moves=listed, keep=len(listed), cuttable=cuttable)
