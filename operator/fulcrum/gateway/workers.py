"""The gateway's view of its workers: who is there, in which role, and what it has under way on each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from fulcrum.api.names import Role
from fulcrum.gateway.metrics import Metrics
from fulcrum.gateway.pool import Pool

logger = logging.getLogger(__name__)

_FIRST_COOLDOWN_SECONDS: Final = 0.5
_LONGEST_COOLDOWN_SECONDS: Final = 8.0


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A usable worker, as the API server (or an option) describes it."""

    name: str
    role: Role
    role_epoch: int = 0
    host: str
    port: int
    incarnation: str = ""
    """Another value means another engine process."""


class Worker:
    """A worker and what is under way on it."""

    __slots__ = (
        "_cooldown_seconds",
        "changed_at",
        "decode_legs",
        "name",
        "pool",
        "prefill_legs",
        "record",
        "role",
        "suspect",
    )

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.name = record.name
        self.role = record.role
        self.pool = Pool(record.host, record.port)
        self.prefill_legs = 0
        self.decode_legs = 0
        self.suspect = False
        self.changed_at: float | None = None
        """Loop time of a role change after which no request was sent yet."""
        self._cooldown_seconds = _FIRST_COOLDOWN_SECONDS

    @property
    def in_flight(self) -> int:
        return self.prefill_legs + self.decode_legs

    def failed(self) -> None:
        """Avoid it for a moment: a dead worker is always the least loaded one."""
        if self.suspect:
            return
        self.suspect = True
        asyncio.get_running_loop().call_later(self._cooldown_seconds, self._forgive)
        self._cooldown_seconds = min(2 * self._cooldown_seconds, _LONGEST_COOLDOWN_SECONDS)

    def worked(self) -> None:
        """It answered."""
        self.suspect = False
        self._cooldown_seconds = _FIRST_COOLDOWN_SECONDS

    def _forgive(self) -> None:
        self.suspect = False


class WorkerView:
    """All usable workers. `replace`, `put` and `remove` take effect for the next request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._workers: dict[str, Worker] = {}
        self._leaving: set[Worker] = set()
        self.workers: list[Worker] = []
        """Usable workers, in no order."""
        self.joined: Callable[[Worker], None] = lambda _worker: None
        """Called for each new engine process."""

    def put(self, record: WorkerRecord) -> None:
        """A worker is usable, or changed."""
        worker = self._workers.get(record.name)
        if worker is not None and _engine(worker.record) == _engine(record):
            self._update(worker, record)
            return
        if worker is not None:
            self._leave(worker)
        worker = self._workers[record.name] = Worker(record)
        self.workers = list(self._workers.values())
        logger.info("worker_joined worker=%s role=%s epoch=%d", record.name, record.role, record.role_epoch)
        self.joined(worker)

    def remove(self, name: str, why: str) -> None:
        """A worker takes no new requests; what is under way on it finishes."""
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        self.workers = list(self._workers.values())
        self._leave(worker)
        logger.info("worker_left worker=%s why=%s in_flight=%d", name, why, worker.in_flight)

    def replace(self, records: Iterable[WorkerRecord]) -> None:
        """Exactly these are usable."""
        listed = {record.name: record for record in records}
        for name in self._workers.keys() - listed.keys():
            self.remove(name, "not_listed")
        for record in listed.values():
            self.put(record)

    def sweep(self, now: float) -> None:
        """Time-outs of all connections to workers (loop time)."""
        for worker in (*self.workers, *self._leaving):
            worker.pool.sweep(now)
        self._leaving = {worker for worker in self._leaving if worker.pool.open_connections}

    def close(self) -> None:
        """Close idle connections."""
        for worker in (*self.workers, *self._leaving):
            worker.pool.close()

    def _update(self, worker: Worker, record: WorkerRecord) -> None:
        before, worker.record, worker.role = worker.record, record, record.role
        if before.role == record.role:
            return
        serves = record.role is not Role.DRAINING
        worker.changed_at = asyncio.get_running_loop().time() if serves else None
        self._metrics.role_changes[before.role, record.role] += 1
        logger.info(
            "role_changed worker=%s from=%s to=%s epoch=%d", record.name, before.role, record.role, record.role_epoch
        )

    def _leave(self, worker: Worker) -> None:
        worker.pool.close()
        self._leaving.add(worker)


def _engine(record: WorkerRecord) -> tuple[str, int, str]:
    return (record.host, record.port, record.incarnation)
