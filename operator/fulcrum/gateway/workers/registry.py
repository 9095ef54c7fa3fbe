"""The gateway's view of its workers: which are there, in which role, and what it has under way on each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fulcrum.api.names import HEADER_RANK, Role
from fulcrum.api.worker import LoadReport
from fulcrum.gateway.http.connection_pool import ConnectionPool
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers.progress import Progress
from fulcrum.routing import ClusterView, WorkerView

logger = logging.getLogger(__name__)

_KEPT_ENDS: Final = 1024
"""Engine processes whose end is remembered: more than end in the seconds in which it is asked for."""


class KnownRank:
    """What a request is sent to: an engine process, or one of its ranks of data parallel where it has several."""

    __slots__ = ("engine", "report", "state", "worker")

    def __init__(
        self, worker: KnownWorker, state: WorkerView, response_budget: ResponseBudget, token: str | None
    ) -> None:
        self.worker = worker
        self.state = state
        """What routing knows of it."""
        record = worker.record
        # Without the header vLLM chooses. Each rank has connections of its own: it answers in an order of its own.
        headers = "" if state.dp_rank is None else f"{HEADER_RANK}: {state.dp_rank}\r\n"
        self.engine = ConnectionPool(
            record.host, record.port, response_budget, token, headers=headers, still=worker.progress.still
        )
        self.report: LoadReport | None = None
        """What the worker's last report said of it."""

    @property
    def name(self) -> str:
        """As in logs and headers."""
        return self.state.name


class KnownWorker:
    """One engine process, as this gateway knows it: how to reach it, what it said, and what is under way on it."""

    __slots__ = ("agent", "changed_at", "name", "progress", "ranks", "record", "report", "role")

    def __init__(
        self,
        record: WorkerRecord,
        states: Sequence[WorkerView],
        response_budget: ResponseBudget,
        token: str | None = None,
    ) -> None:
        """`states`: what routing knows of each of its ranks."""
        self.record = record
        self.name = record.name
        self.role = record.role
        self.agent: ConnectionPool | None = None
        if record.agent_port is not None:
            self.agent = ConnectionPool(record.host, record.agent_port, response_budget, token)
        self.progress = Progress(self.agent)
        self.ranks = tuple(KnownRank(self, state, response_budget, token) for state in states)
        """In order; one where it has no data parallelism."""
        self.report: LoadReport | None = None
        """Its last answer to `GET /load`; None: it never gave one, or not the last time."""
        self.changed_at: float | None = None
        """Loop time of a role change after which no request was sent yet."""

    @property
    def in_flight(self) -> int:
        """Legs under way on it."""
        return sum(rank.state.in_flight for rank in self.ranks)

    @property
    def awaited(self) -> bool:
        """Legs are under way on it, or will be: their requests are in prefill elsewhere."""
        return self.in_flight > 0 or any(rank.state.answers.pending > 0 for rank in self.ranks)

    @property
    def suspect(self) -> bool:
        """It failed a moment ago."""
        return self.ranks[0].state.suspect

    def heard(self, report: LoadReport | None) -> None:
        """Its agent said this; None: nothing that could be read."""
        self.report = report
        for number, rank in enumerate(self.ranks):
            rank.report = None if report is None else report.of_rank(number, len(self.ranks))

    def close(self) -> None:
        """Close idle connections now and busy ones when they are done."""
        for rank in self.ranks:
            rank.engine.close()
        if self.agent is not None:
            self.agent.close()


class WorkerRegistry:
    """All usable workers. `replace`, `put` and `remove` take effect for the next request."""

    def __init__(
        self,
        metrics: Metrics,
        cluster: ClusterView | None = None,
        response_budget: ResponseBudget | None = None,
        *,
        token: str | None = None,
    ) -> None:
        """`token` is what workers of this cluster ask for."""
        self._metrics = metrics
        self._token = token
        self.cluster = cluster or ClusterView()
        """The same workers as routing sees them."""
        self._response_budget = response_budget or ResponseBudget()
        self._workers: dict[str, KnownWorker] = {}
        self._leaving: set[KnownWorker] = set()
        self._kv_dtypes: dict[str, str] = {}
        """By worker: the element type of its KV cache, where it is not the one that its engine was told."""
        self.workers: list[KnownWorker] = []
        """Usable workers, in no order."""
        self.learns_ends = False
        """`ended` is called for workers that end."""
        self._ends: dict[tuple[str, str], bool] = {}
        self.joined: Callable[[KnownWorker], None] = lambda _worker: None
        """Called for each new engine process."""

    @property
    def ranks(self) -> Iterator[KnownRank]:
        """Every rank of all usable workers."""
        return (rank for worker in self.workers for rank in worker.ranks)

    def put(self, record: WorkerRecord) -> None:
        """A worker is usable, or changed."""
        joined = self._put(record)
        if joined is not None:
            self.workers = list(self._workers.values())
            self.joined(joined)

    def _put(self, record: WorkerRecord) -> KnownWorker | None:
        """Returns a new engine process."""
        worker = self._workers.get(record.name)
        states = self.cluster.workers.put(
            record.name,
            record.role,
            pool=record.pool,
            revision=record.revision + self._kv_dtypes.get(record.name, ""),
            node=record.node,
            incarnation=f"{record.incarnation}@{record.host}:{record.port}",
            data_parallel=record.data_parallel,
        )
        if worker is not None and _engine(worker.record) == _engine(record):
            for rank, state in zip(worker.ranks, states, strict=True):
                rank.state = state
            self._update(worker, record)
            return None
        if worker is not None:
            self._leave(worker)
        worker = self._workers[record.name] = KnownWorker(record, states, self._response_budget, self._token)
        logger.info("worker_joined worker=%s role=%s epoch=%d", record.name, record.role, record.role_epoch)
        return worker

    def remove(self, name: str, why: str) -> None:
        """A worker takes no new requests; what is under way on it finishes."""
        self._remove(name, why)
        self.workers = list(self._workers.values())

    def _remove(self, name: str, why: str) -> None:
        worker = self._workers.pop(name, None)
        self._kv_dtypes.pop(name, None)
        if worker is None:
            return
        self.cluster.workers.remove(name)
        self._leave(worker)
        logger.info("worker_left worker=%s why=%s in_flight=%d", name, why, worker.in_flight)

    def ended(self, name: str, incarnation: str, *, crashed: bool) -> None:
        """An engine process has ended: by itself (`crashed`), or its Pod was taken away. The first report counts."""
        self._ends.setdefault((name, incarnation), crashed)
        if len(self._ends) > _KEPT_ENDS:
            del self._ends[next(iter(self._ends))]

    def crashed(self, worker: KnownWorker) -> bool | None:
        """Whether the engine process of `worker` ended by itself; None: that is not known."""
        return self._ends.get((worker.name, worker.record.incarnation))

    def replace(self, records: Iterable[WorkerRecord]) -> None:
        """Exactly these are usable."""
        listed = {record.name: record for record in records}
        self.cluster.workers.hold()
        try:
            for name in self._workers.keys() - listed.keys():
                self._remove(name, "not_listed")
            joined = [worker for record in listed.values() if (worker := self._put(record)) is not None]
        finally:
            self.cluster.workers.settle()
        self.workers = list(self._workers.values())
        for worker in joined:
            self.joined(worker)

    def has(self, worker: KnownWorker) -> bool:
        """Whether this engine process is usable."""
        return self._workers.get(worker.name) is worker

    def took_kv_dtype(self, worker: KnownWorker, dtype: str | None) -> None:
        """Its engine says of which type its KV is. One that was told another shares KV only with its like."""
        told = worker.record.kv_cache_dtype
        unlike = "" if dtype is None or told in ("", dtype) else f" as {dtype}"
        if self._kv_dtypes.get(worker.name, "") == unlike:
            return
        self._kv_dtypes[worker.name] = unlike
        logger.warning("kv_dtype_differs worker=%s told=%s took=%s", worker.name, told, dtype)
        self.put(worker.record)

    def of(self, state: WorkerView) -> KnownRank:
        """The rank that a path names; paths are used as soon as they are found."""
        return self._workers[state.worker].ranks[state.dp_rank or 0]

    def failed(self, rank: KnownRank, now: float) -> None:
        """It failed a request: avoid its worker for a moment. A dead worker is always the least loaded one."""
        self.cluster.workers.failed(rank.state, now)

    def worked(self, rank: KnownRank) -> None:
        """It answered a request."""
        self.cluster.workers.worked(rank.state)

    def sweep(self, now: float) -> None:
        """Time-outs of all connections to workers, and of what is held against them (loop time)."""
        for worker in (*self.workers, *self._leaving):
            for rank in worker.ranks:
                rank.engine.sweep(now)
            if worker.agent is not None:
                worker.agent.sweep(now)
        for state in self.cluster.tick(now):
            self._metrics.ejections[state.role] += 1
            logger.warning("worker_ejected worker=%s role=%s why=outlier", state.worker, state.role)
        self._leaving = {
            worker
            for worker in self._leaving
            if worker.awaited or any(rank.engine.open_connections for rank in worker.ranks)
        }

    def close(self) -> None:
        """Close idle connections."""
        for worker in (*self.workers, *self._leaving):
            worker.close()

    def _update(self, worker: KnownWorker, record: WorkerRecord) -> None:
        before, worker.record, worker.role = worker.record, record, record.role
        if before.role == record.role:
            return
        serves = record.role is not Role.DRAINING
        worker.changed_at = asyncio.get_running_loop().time() if serves else None
        self._metrics.role_changes[before.role, record.role] += 1
        logger.info(
            "role_changed worker=%s from=%s to=%s epoch=%d", record.name, before.role, record.role, record.role_epoch
        )

    def _leave(self, worker: KnownWorker) -> None:
        worker.close()
        self._leaving.add(worker)


def _engine(record: WorkerRecord) -> tuple[str, int, int | None, str, int]:
    return (record.host, record.port, record.agent_port, record.incarnation, record.data_parallel)
