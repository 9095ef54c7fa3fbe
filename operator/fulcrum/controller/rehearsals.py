"""Rehearsals of all clusters, one after another: plans ask, and a later tick reads the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from fulcrum.api.messages import shortened
from fulcrum.api.record import MOST_BYTES
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.cluster_watches import ClusterKey
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.play_process import PlayError, PlayProcess
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import Snapshot
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.rehearsed import Rehearsed, Wanted, rehearses
from fulcrum.rehearsal.case import Case, Played, played, untold
from fulcrum.rehearsal.memory import Memory
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.telemetry.rings import read_rings
from fulcrum.telemetry.turns import Turns

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 5.0
"""Between two questions about one cluster: little more is known before."""
LONGEST_PAUSE_SECONDS: Final = 600.0
"""After rehearsals of a cluster that failed one after the other: the pause doubles with each."""
UNANSWERED_SECONDS: Final = 300.0
"""Without an answer, after which roles change as without rehearsals where `balance.rehearse` is not set."""
ESTIMATED_SECONDS: Final = 600.0
"""How long they do, before rehearsals are tried again."""
FRESH_SECONDS: Final = 60.0
"""How old the requests may be by which a plan acts."""
RINGS_BYTES: Final = 64 * 1024 * 1024
"""Of all rings of a cluster; where there may be more, gateways are asked for fewer seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a tick wants to be rehearsed, and what it knew."""

    uid: str
    spec: InferenceClusterSpec
    wanted: Wanted
    gateways: Mapping[str, str]
    """Address of each ready gateway Pod, by name."""
    token: str | None = field(repr=False)
    measurements: Measurements
    model: ModelFacts | None


def asked_of(cluster: WatchedCluster, snapshot: Snapshot, wanted: Wanted, *, uid: str, token: str | None) -> Asked:
    """Return the question of a plan that was made of `snapshot`."""
    return Asked(
        uid=uid,
        spec=snapshot.spec,
        wanted=wanted,
        gateways=cluster.gateways,
        token=token,
        measurements=snapshot.measurements,
        model=snapshot.model,
    )


@dataclass(slots=True)
class _Cluster:
    """What is remembered of one cluster; it may be lost at any time."""

    memory: Memory = field(default_factory=Memory)
    asked: Asked | None = None
    """The newest question that waits; it replaces an older one."""
    task: asyncio.Task[None] | None = None
    answer: Rehearsed | None = None
    next_at: float = float("-inf")
    """Monotonic time before which nothing is asked."""
    failures: int = 0
    """One after the other, until now."""
    problem: str = ""
    unanswered: tuple[float, float] | None = None
    """Monotonic times of the first and the last of the questions, one after the other, that have no answer."""
    estimated_until: float = float("-inf")
    """Monotonic time until which estimates decide."""

    def wants_answer(self, now: float) -> None:
        """Take in a question at monotonic time `now`, also one that has to wait."""
        first, last = self.unanswered or (now, now)
        # After a while without a question the trouble is another one.
        self.unanswered = (first if now - last < UNANSWERED_SECONDS else now, now)
        if now - self.unanswered[0] >= UNANSWERED_SECONDS:
            self.unanswered, self.estimated_until = None, now + ESTIMATED_SECONDS

    def has_answer(self) -> None:
        """Take in that a question was played."""
        self.unanswered, self.estimated_until = None, float("-inf")

    def forget_future(self, now: datetime) -> None:
        """Forget what is of a later time than now: the clock was set back."""
        if self.memory.asked_at > now.timestamp() or (self.answer is not None and self.answer.time > now):
            self.memory, self.answer = Memory(), None


class Rehearsals:
    """Asks gateways for their rings and plays them in one process; namespaces take turns. An async context manager.

    Whatever fails is a rehearsal that did not come: what stands is kept, and a later plan asks again.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        wake: Callable[[ClusterKey], None],
        now: Callable[[], datetime],
        process: PlayProcess | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` asks for a tick of a cluster whose answer has come."""
        self._process, self._metrics = process or PlayProcess(), metrics
        self._wake, self._now, self._clock = wake, now, clock
        self._turns = Turns(1)
        self._clusters: dict[ClusterKey, _Cluster] = {}
        self._stopped: set[asyncio.Task[None]] = set()

    def known(self, key: ClusterKey, spec: InferenceClusterSpec, measured: Measurements) -> Measurements:
        """Return what was measured with what was rehearsed."""
        if not rehearses(spec):
            return measured
        cluster = self._clusters.get(key)
        if cluster is not None:
            cluster.forget_future(self._now())
        distrusted = cluster is not None and cluster.memory.distrusts(self._now().timestamp())
        measured = replace(measured, plays_distrusted=distrusted)
        if cluster is not None and spec.balance.rehearse is None and self._clock() < cluster.estimated_until:
            return measured
        answer = cluster.answer if cluster is not None else None
        if answer is not None and (self._now() - answer.time).total_seconds() > FRESH_SECONDS:
            answer = None
        return replace(measured, rehearses=True, rehearsed=answer)

    def ask(self, key: ClusterKey, asked: Asked) -> None:
        """Take a question; it waits for its turn."""
        cluster = self._clusters.setdefault(key, _Cluster())
        cluster.wants_answer(self._clock())
        if cluster.task is None and self._clock() < cluster.next_at:
            return
        cluster.asked = asked
        if cluster.task is None:
            cluster.task = asyncio.create_task(self._serve(key, cluster), name=f"rehearsal-{key[0]}-{key[1]}")

    def forget(self, key: ClusterKey) -> None:
        """Drop a cluster that is gone."""
        cluster = self._clusters.pop(key, None)
        if cluster is not None and cluster.task is not None:
            cluster.task.cancel()
            self._stopped.add(cluster.task)
            cluster.task.add_done_callback(self._stopped.discard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all rehearsals, and the process."""
        for key in list(self._clusters):
            self.forget(key)
        await self._process.close()
        if self._stopped:
            await asyncio.wait(set(self._stopped))

    async def _serve(self, key: ClusterKey, cluster: _Cluster) -> None:
        began = self._clock()
        try:
            assert cluster.asked is not None
            found = await self._untold(cluster.asked, cluster.memory)
            if found is None:
                async with self._turns.of(key[0]):
                    asked, cluster.asked = cluster.asked, None
                    cluster.forget_future(self._now())
                    found = await self._played(asked, cluster.memory)
        except PlayError as error:
            cluster.failures += 1
            self._metrics.rehearsal("failed")
            self._say(key, cluster, str(error))
        except Exception:
            # A defect costs this rehearsal and nothing else.
            cluster.failures += 1
            self._metrics.rehearsal("failed")
            logger.exception("rehearsal_failed namespace=%s cluster=%s", *key)
        else:
            cluster.memory, cluster.failures = found.memory, 0
            if not found.problem:
                cluster.has_answer()
            self._say(key, cluster, found.problem)
            result = "unknown" if found.problem else "none" if found.rehearsed is None else "answered"
            self._metrics.rehearsal(result, found.plays, found.played_requests)
            self._metrics.rehearsal_waited(self._clock() - began)
            if found.rehearsed is not None:
                cluster.answer = found.rehearsed
                self._wake(key)
        finally:
            pause_seconds = min(PAUSE_SECONDS * 2.0 ** min(cluster.failures, 10), LONGEST_PAUSE_SECONDS)
            cluster.task, cluster.asked, cluster.next_at = None, None, self._clock() + pause_seconds

    @staticmethod
    async def _untold(asked: Asked, memory: Memory) -> Played | None:
        """Return what comes of it where a gateway does not answer; None: all do.

        No other cluster waits for that, as it would in the turn of this one.
        """
        rings = await read_rings(asked.gateways, token=asked.token, last_seconds=1.0)
        silent = [(ring.gateway, ring.problem) for ring in rings if ring.page is None]
        return Played(memory=memory, problem=untold(silent)) if silent else None

    async def _played(self, asked: Asked, memory: Memory) -> Played:
        # The rings of all gateways take the operator's memory twice.
        last_seconds = TUNING.memory_seconds * min(1.0, RINGS_BYTES / (MOST_BYTES * max(len(asked.gateways), 1)))
        rings = await read_rings(
            asked.gateways, token=asked.token, last_seconds=max(last_seconds, TUNING.shortest_seconds)
        )
        case = Case(
            uid=asked.uid,
            spec=asked.spec,
            wanted=asked.wanted,
            time=self._now(),
            rings=rings,
            memory=memory,
            speeds=asked.measurements.speeds,
            start_seconds=asked.measurements.start_seconds or 0.0,
            pairs=asked.measurements.pairs,
            model=asked.model,
        )
        return await self._process.play(partial(played, case))

    def _say(self, key: ClusterKey, cluster: _Cluster, problem: str) -> None:
        problem = shortened(problem)
        if problem != cluster.problem:
            cluster.problem = problem
            if problem:
                logger.warning("rehearsal_unknown namespace=%s cluster=%s why=%r", *key, problem)
