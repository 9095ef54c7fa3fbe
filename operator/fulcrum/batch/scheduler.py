"""Which batches run, and their way from one state to the next. After a restart every batch goes on in its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum.api.batch import BatchCounts, BatchLimits
from fulcrum.batch.lines import check_file
from fulcrum.batch.objects import LineError, Status, StoredBatch, StoredFile
from fulcrum.batch.pace import Pace
from fulcrum.batch.results import Results
from fulcrum.batch.run import Run
from fulcrum.batch.sender import Sender
from fulcrum.batch.store import Store
from fulcrum.gateway.unhandled import describe

logger = logging.getLogger(__name__)

_MOST_RUNNING: Final = 8
"""Batches that run at once; those beyond wait, and each API key gets its turn."""
_SWEEP_SECONDS: Final = 60.0
"""How often what is older than its time is removed, and batches that wait are looked at for the end of theirs."""
_AGAIN_SECONDS: Final = 30.0
"""Wait before a batch goes on that an error has stopped, such as a full disk."""


@dataclass(slots=True)
class _Carried:
    """A batch under way."""

    task: asyncio.Task[None]
    stop: asyncio.Event
    """It was cancelled by its owner."""


class Scheduler:
    """All batches of one process."""

    def __init__(
        self, store: Store, sender: Sender, limits: BatchLimits, *, now: Callable[[], float] = time.time
    ) -> None:
        """`now`: seconds since 1970."""
        self._store = store
        self._sender = sender
        self._limits = limits
        self._now = now
        self._slots = asyncio.Semaphore(limits.max_in_flight)
        self._carried: dict[str, _Carried] = {}
        self._news = asyncio.Event()

    def wake(self) -> None:
        """There is a new batch, or one was cancelled."""
        self._news.set()

    async def cancel(self, batch_id: str) -> StoredBatch:
        """Cancel a batch that has not ended, and is not about to; another one stays as it is."""
        at = int(self._now())

        def cancelled(batch: StoredBatch) -> StoredBatch:
            if batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
                return batch
            return msgspec.structs.replace(batch, status=Status.CANCELLING, cancelling_at=at)

        batch = await self._store.change_batch(batch_id, cancelled)
        if batch.status is Status.CANCELLING and (carried := self._carried.get(batch_id)) is not None:
            carried.stop.set()
        self.wake()
        return batch

    def progress(self) -> BatchCounts:
        """What waits and what runs."""
        running = [self._store.batches[each] for each in self._carried]
        return BatchCounts(
            waiting=sum(not each.ended and each.id not in self._carried for each in self._store.batches.values()),
            running=len(running),
            requests=sum(each.total for each in running),
            completed=sum(each.completed for each in running),
            failed=sum(each.failed for each in running),
        )

    async def recount(self) -> None:
        """Count what the result files of batches under way have: without it their progress would be 0 for a while."""
        for batch in [each for each in self._store.batches.values() if each.status is Status.IN_PROGRESS]:
            with contextlib.suppress(OSError):  # it is met again, and told, when the batch goes on
                results = await self._results(batch)
                await results.close()
                self._store.count(batch.id, completed=results.completed, failed=results.failed)

    async def run(self) -> None:
        """Carry batches to their ends until cancelled."""
        try:
            while True:
                self._news.clear()
                for batch_id in self._chosen():
                    stop = asyncio.Event()
                    task = asyncio.create_task(self._carry(batch_id, stop))
                    self._carried[batch_id] = _Carried(task, stop)
                try:
                    await self._sweep()
                except OSError as error:
                    logger.warning("sweep_failed error=%s", error.strerror)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_SECONDS):
                        await self._news.wait()
        finally:
            tasks = [carried.task for carried in self._carried.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _chosen(self) -> list[str]:
        """Batches to begin now: those that end anyway; then the oldest of the keys for which the fewest run."""
        waiting = [each for each in self._store.batches.values() if not each.ended and each.id not in self._carried]
        waiting.sort(key=lambda batch: (batch.created_at, batch.id))
        ending = [each for each in waiting if each.status is Status.CANCELLING or each.expires_at <= self._now()]
        chosen = [each.id for each in ending]
        waiting = [each for each in waiting if each.id not in set(chosen)]
        running = Counter(self._store.batches[each].owner for each in self._carried)
        for _ in range(_MOST_RUNNING - len(self._carried)):
            if not waiting:
                break
            following = min(waiting, key=lambda batch: running[batch.owner])
            waiting.remove(following)
            running[following.owner] += 1
            chosen.append(following.id)
        return chosen

    async def _carry(self, batch_id: str, stop: asyncio.Event) -> None:
        """Bring a batch to its end."""
        try:
            while not self._store.batches[batch_id].ended:
                try:
                    await self._step(batch_id, stop)
                except Exception as error:  # noqa: BLE001  the edge of one batch: the others go on
                    why = error.strerror if isinstance(error, OSError) else describe(error)
                    logger.warning("batch_stopped id=%s again_in_seconds=%g error=%s", batch_id, _AGAIN_SECONDS, why)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN_SECONDS):
                            await stop.wait()
            batch = self._store.batches[batch_id]
            logger.info(
                "batch_ended id=%s status=%s requests=%d completed=%d failed=%d",
                batch_id, batch.status.value, batch.total, batch.completed, batch.failed,
            )  # fmt: skip
        finally:
            del self._carried[batch_id]
            self.wake()

    async def _step(self, batch_id: str, stop: asyncio.Event) -> None:
        """Bring a batch to its next state. Raises OSError."""
        match self._store.batches[batch_id].status:
            case Status.VALIDATING:
                await self._validate(batch_id)
            case Status.IN_PROGRESS:
                await self._answer_lines(batch_id, stop)
            case Status.FINALIZING:
                await self._end(batch_id, Status.COMPLETED)
            case _:
                await self._end(batch_id, Status.CANCELLED)

    async def _validate(self, batch_id: str) -> None:
        batch = self._store.batches[batch_id]
        total, errors = 0, tuple[LineError, ...]()
        if batch.input_file_id not in self._store.files:
            gone = LineError(
                code="input_file_gone", message="The input file was deleted or has expired: upload it again."
            )
            errors = (gone,)
        else:
            content = self._store.content(batch.input_file_id)
            total, errors = await asyncio.to_thread(check_file, content, batch.endpoint, self._limits)
        at = int(self._now())
        if errors:
            await self._change(batch_id, Status.VALIDATING, status=Status.FAILED, failed_at=at, errors=errors)
        else:
            await self._change(batch_id, Status.VALIDATING, status=Status.IN_PROGRESS, in_progress_at=at, total=total)

    async def _answer_lines(self, batch_id: str, stop: asyncio.Event) -> None:
        batch = self._store.batches[batch_id]
        results = await self._results(batch)

        def counted() -> None:
            self._store.count(batch_id, completed=results.completed, failed=results.failed)

        counted()
        run = Run(
            owner=batch.owner,
            endpoint=batch.endpoint,
            content=self._store.content(batch.input_file_id),
            max_line_bytes=self._limits.max_line_bytes,
            results=results,
            sender=self._sender,
            pace=Pace(self._limits.max_in_flight, jitter=random.random, clock=time.monotonic),
            slots=self._slots,
            counted=counted,
        )
        try:
            lines = asyncio.create_task(run.all_lines(min(self._limits.max_in_flight, batch.total)))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait(
                    (lines, stopped), timeout=max(batch.expires_at - self._now(), 0.0), return_when="FIRST_COMPLETED"
                )
                whole = lines.done()
            finally:
                lines.cancel()
                stopped.cancel()
                ended = await asyncio.gather(lines, stopped, return_exceptions=True)
            if whole and isinstance(ended[0], Exception):
                raise ended[0]
            if not whole and not stop.is_set():
                await run.expire()
        finally:
            await results.close()
        counted()
        if not whole and stop.is_set():
            return  # its state is `cancelling` now
        if results.expired:
            await self._end(batch_id, Status.EXPIRED)
        else:
            await self._change(batch_id, Status.IN_PROGRESS, status=Status.FINALIZING, finalizing_at=int(self._now()))

    async def _results(self, batch: StoredBatch) -> Results:
        output, errors = self._store.content(batch.output_file_id), self._store.content(batch.error_file_id)
        return await asyncio.to_thread(Results, output, errors)

    async def _end(self, batch_id: str, status: Status) -> None:
        """Make files of the results that there are, then end the batch."""
        batch = self._store.batches[batch_id]
        results = await self._results(batch)
        await results.close()
        at = int(self._now())
        for file_id, lines, kind in (
            (batch.output_file_id, results.completed, "output"),
            (batch.error_file_id, results.failed, "error"),
        ):
            if lines:
                await self._store.add_file(self._result_file(batch, file_id, kind, at))
            else:
                self._store.content(file_id).unlink(missing_ok=True)
        self._store.count(batch_id, completed=results.completed, failed=results.failed)
        await self._change(
            batch_id,
            batch.status,
            status=status,
            completed=results.completed,
            failed=results.failed,
            has_output=results.completed > 0,
            has_errors=results.failed > 0,
            **{f"{status.value}_at": at},
        )

    def _result_file(self, batch: StoredBatch, file_id: str, kind: str, at: int) -> StoredFile:
        retention = self._limits.retention_seconds
        return StoredFile(
            id=file_id,
            owner=batch.owner,
            filename=f"{batch.id}_{kind}.jsonl",
            purpose="batch_output",
            bytes=self._store.content(file_id).stat().st_size,
            created_at=at,
            expires_at=at + int(min(batch.results_expire_seconds or retention, retention)),
        )

    async def _change(self, batch_id: str, expected: Status, **changes: Any) -> None:
        """Change a batch, if it is still in the state that it was in: its owner may have cancelled it."""
        await self._store.change_batch(
            batch_id,
            lambda batch: msgspec.structs.replace(batch, **changes) if batch.status is expected else batch,
        )

    async def _sweep(self) -> None:
        """Remove files and batches that are older than their time."""
        now = self._now()
        used = {batch.input_file_id for batch in self._store.batches.values() if not batch.ended}
        for file in [each for each in self._store.files.values() if each.expires_at <= now and each.id not in used]:
            await self._store.delete_file(file.id)
            logger.info("file_expired id=%s", file.id)
        oldest = now - self._limits.retention_seconds
        for batch in [each for each in self._store.batches.values() if each.ended and each.ended_at <= oldest]:
            await self._store.delete_batch(batch.id)
