"""The pool as a tier of vLLM's offloading, below host memory. Written against vLLM 0.32.0."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from fulcrum_worker.kv.pool.block_file import BadBlockError
from fulcrum_worker.kv.pool.health import Problem, Way, problem_of
from fulcrum_worker.kv.pool.jobs import Movers, Transfer
from fulcrum_worker.kv.pool.names import BAD_BLOCKS, DROPPED_BLOCKS, PROBLEM, USED_BYTES
from fulcrum_worker.kv.pool.store import BlockStore, PoolFullError

logger = logging.getLogger(__name__)

_READERS: Final = 4
_WRITERS: Final = 2
_LOOKUP_SECONDS: Final = 1.0
"""Longest wait for the answer whether blocks are there; a prompt of 2,000 blocks takes 0.3 s on a network volume."""
_TRANSFER_SECONDS: Final = 5.0
"""Time without a single block after which a transfer is given up. A scheduler that knows the engine's speed cuts a load
earlier."""
_WAITING_SHARE: Final = 0.25
"""Share of host memory that may wait to be written. What waits cannot be evicted; beyond this, blocks are dropped."""
_CLOSE_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Asked:
    """What is known of a request's blocks."""

    began: float
    allowed: bool
    worth: bool | None = None


class _Lookups(AsyncLookupManager):
    def __init__(self, tier: PoolTier) -> None:
        self._tier = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._tier.find(keys)

    def found(self, req_id: str) -> int:
        """Blocks of a request that are there."""
        return sum(bool(self._lookup_state[key].result) for key in self._req_keys.get(req_id, ()))


class PoolTier(SecondaryTierManager):
    """Blocks on a shared volume. A volume that fails costs time, never an answer."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(  # noqa: PLR0917 (vLLM makes it)
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        root: str,
        size_bytes: int,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._store = BlockStore(Path(root), namespace=offloading_spec.pool_namespace or "none", limit_bytes=size_bytes)
        self._reading, self._writing = Way(time.monotonic), Way(time.monotonic)
        if offloading_spec.pool_namespace is None:
            self._reading.failed(Problem.UNUSABLE)
            self._writing.failed(Problem.UNUSABLE)
        self._one_group = len(offloading_spec.config.groups) == 1
        host = np.asarray(primary_kv_view).view(np.uint8).reshape(-1, self.block_size_bytes)
        self._most_waiting = max(int(len(host) * _WAITING_SHARE), 1)
        self._changed = threading.Event()
        self._readers = Movers("read", host=host, move=self._read, threads=_READERS, changed=self._changed)
        self._writers = Movers("write", host=host, move=self._write, threads=_WRITERS, changed=self._changed)
        self._transfers: dict[int, tuple[Transfer, str]] = {}
        self._refused: list[JobResult] = []
        self._asked: dict[str, _Asked] = {}
        self._lookups = _Lookups(self)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._used: int | None = None
        self._looking = False
        self.worth_loading: Callable[[str, int], bool] = lambda _request, _blocks: True
        """Whether a request should load this many blocks rather than compute them; the scheduler's half sets it."""
        self.loaded: Callable[[int, float], None] = lambda _blocks, _seconds: None
        """Told of each load: its blocks, and what it took."""
        threading.Thread(target=self._clear, name="kv-pool-clear", daemon=True).start()

    def _clear(self) -> None:
        if not self._writing.is_open():
            return
        try:
            self._store.clear_unfinished()
        except OSError as error:
            self._failed(self._writing, error)

    # What is there.

    def find(self, keys: list[OffloadKey]) -> list[bool]:
        """Report which blocks are there, in a thread of its own. A prefix ends at the first that is not."""
        found: list[bool] = []
        try:
            for key in keys:
                found.append(self._store.has(key))
                if self._one_group and not found[-1]:
                    break
            self._used = self._store.used_bytes()
            self._reading.worked()
        except OSError as error:
            self._failed(self._reading, error)
            return [False] * len(keys)
        finally:
            self._looking = False
            self._changed.set()
        return found + [False] * (len(keys) - len(found))

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Report whether a block is there, and worth its load."""
        asked = self._asked.get(req_context.req_id)
        if asked is None:
            asked = _Asked(time.monotonic(), self._reading.is_open())
            self._asked[req_context.req_id] = asked
        if not asked.allowed:
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            if time.monotonic() - asked.began < _LOOKUP_SECONDS:
                return LookupResult.RETRY
            asked.allowed = False
            self._slow(self._reading, "lookup")
            return LookupResult.MISS
        if not found:
            return LookupResult.MISS
        if asked.worth is None:
            asked.worth = self.worth_loading(req_context.req_id, self._lookups.found(req_context.req_id))
        return LookupResult.HIT if asked.worth else LookupResult.MISS

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Blocks are stored as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget what was asked for it."""
        self._asked.pop(req_context.req_id, None)
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Send this step's questions."""
        self._looking |= bool(self._lookups._lookup_batch)  # noqa: SLF001 (it has no name for it)
        self._lookups.flush()

    # Transfers.

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Write blocks, unless the volume fails or too much waits."""
        waiting = sum(len(each.keys) - each.ended for each, _ in self._transfers.values() if not each.reads)
        if waiting + len(job_metadata.keys) > self._most_waiting or not self._writing.is_open():
            self._note(DROPPED_BLOCKS, count=len(job_metadata.keys))
            self._refused.append(JobResult(job_id=job_metadata.job_id, success=False))
            return
        self._writers.submit(self._transfer(job_metadata, reads=False))

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Read blocks."""
        self._readers.submit(self._transfer(job_metadata, reads=True))

    def _transfer(self, job: TransferJob, *, reads: bool) -> Transfer:
        transfer = Transfer(job.job_id, list(job.keys), [int(row) for row in job.chunk_ids], reads)
        self._transfers[job.job_id] = transfer, job.req_context.req_id
        return transfer

    def loading(self, request_id: str) -> Transfer | None:
        """Return the load of a request that is under way."""
        return next((each for each, of in self._transfers.values() if each.reads and of == request_id), None)

    def await_change(self, seconds: float) -> None:
        """Wait for a transfer or an answer, at most this long; return at once where nothing is under way."""
        transfers = [each for each, _ in self._transfers.values()]
        if (transfers and not any(each.finished for each in transfers)) or (not transfers and self._looking):
            self._changed.wait(seconds)
        self._changed.clear()

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return transfers that have ended; of a load that was cut, what came until then is kept."""
        results, self._refused = self._refused, []
        now = time.monotonic()
        for job_id, (transfer, _) in list(self._transfers.items()):
            if not transfer.finished and now - transfer.changed > _TRANSFER_SECONDS:
                transfer.cut_now()
                self._slow(self._reading if transfer.reads else self._writing, "transfer")
            if transfer.finished:
                del self._transfers[job_id]
                results.append(self._result(transfer))
        return results

    def _result(self, transfer: Transfer) -> JobResult:
        with transfer.lock:
            moved = [transfer.keys[index] for index in sorted(transfer.moved)]
            seconds = max(transfer.changed - transfer.began, 0.0)
        if transfer.reads:
            self.loaded(len(moved), seconds)
        if transfer.reads and len(moved) < len(transfer.keys):
            there = set(moved)
            self._lookups.mark_miss([OffloadKey(key) for key in transfer.keys if key not in there])
        return JobResult(
            job_id=transfer.job_id,
            success=len(moved) == len(transfer.keys),
            successful_keys=tuple(OffloadKey(key) for key in moved) or None,
            transfer_time=seconds,
            transfer_bytes=len(moved) * self.block_size_bytes,
        )

    def _read(self, key: bytes, buffer: memoryview) -> None:
        try:
            self._store.read(key, buffer)
        except FileNotFoundError:  # it made room for others since it was found
            raise
        except BadBlockError as error:
            logger.warning("kv_pool_bad_block flaw=%s key=%s", error.flaw, key.hex())
            self._note(BAD_BLOCKS, error.flaw.value)
            self._remove(key)
            raise
        except OSError as error:
            self._failed(self._reading, error)
            raise
        self._reading.worked()

    def _remove(self, key: bytes) -> None:
        try:
            self._store.remove(key)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed(self._writing, error)

    def _write(self, key: bytes, buffer: memoryview) -> None:
        try:
            self._store.write(key, buffer)
        except PoolFullError:
            self._note(DROPPED_BLOCKS)
            raise
        except OSError as error:
            self._note(DROPPED_BLOCKS)
            self._failed(self._writing, error)
            raise
        self._used = self._store.used_bytes()
        self._writing.worked()

    def drain_jobs(self) -> None:
        """Cut all transfers: nothing touches host memory from here on."""
        for transfer, _ in self._transfers.values():
            transfer.cut_now()

    def shutdown(self) -> None:
        """End all threads."""
        self.drain_jobs()
        self._readers.close(wait_seconds=_CLOSE_SECONDS)
        self._writers.close(wait_seconds=_CLOSE_SECONDS)
        self._lookups._lookup_queue.put(None)  # noqa: SLF001 (its own shutdown would wait for a volume that hangs)

    # Figures.

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The tier's own metrics."""
        return {
            **super().build_metric_definitions(extra_config),
            BAD_BLOCKS: OffloadingCounterMetadata("Files of the pool that were not usable.", ("flaw",)),
            DROPPED_BLOCKS: OffloadingCounterMetadata("Blocks that were not stored in the pool."),
            USED_BYTES: OffloadingGaugeMetadata("Bytes that all engines have in the pool."),
            PROBLEM: OffloadingGaugeMetadata("1 for what is wrong with the pool's volume now.", ("problem",)),
        }

    def get_stats(self) -> OffloadingConnectorStats:
        """Return and reset what was counted since the last call."""
        stats = OffloadingConnectorStats()
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for (name, labels), count in counts.items():
            stats.increase_counter(name, count, labels)
        current = self.problem
        for problem in Problem:
            stats.set_gauge(PROBLEM, float(problem is current), (problem.value,))
        if self._used is not None:
            stats.set_gauge(USED_BYTES, self._used)
        return stats

    @property
    def problem(self) -> Problem | None:
        """What is wrong with the volume; None: nothing is known to be."""
        return self._reading.problem or self._writing.problem

    def _note(self, name: str, *labels: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name, labels] += count

    def _failed(self, way: Way, error: OSError) -> None:
        problem = problem_of(error)
        if way.problem is not problem:
            logger.warning("kv_pool_failed problem=%s error=%r", problem, str(error))
        way.failed(problem)

    def _slow(self, way: Way, what: str) -> None:
        logger.warning("kv_pool_failed problem=%s what=%s", Problem.SLOW, what)
        way.failed(Problem.SLOW)
