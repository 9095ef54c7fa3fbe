"""Tries pairs of workers before users do, and again on suspicion.

The first NIXL handshake of a pair can take seconds (REFERENCES, section 2). Handshakes are of ranks: of a worker with
data parallelism, each rank is tried with each rank of the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from fulcrum.api.gateway import FailingPair, PairsReport
from fulcrum.gateway.http.upstream_answer import Failure, UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.canary import Canary, CanaryRunner
from fulcrum.gateway.workers.registry import KnownRank, KnownWorker, WorkerRegistry
from fulcrum.routing import Pair, PairHealth

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""Pairs that are tried at a time; a rank is in one of them at most."""
_TOTAL_SECONDS: Final = 120.0
"""Time after a worker joined in which its pairs are tried; requests try the rest."""
_MAX_ATTEMPTS: Final = 5
_RETRY_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 2.0
"""A canary that takes longer has waited for a handshake, most likely one that failed (5 s in vLLM 0.32)."""
_CALM_SECONDS: Final = 10.0
"""Pause between two canaries of a good pair, however often it is suspected."""
_MAX_PENDING: Final = 4096
_GOOD: Final = ("warm", "no_kv", "unverified")
_FAILED: Final = ("recomputed", "decode_timeout", "decode_error")
"""Outcomes that say that KV does not cross; others say that one of the engines did not answer."""


_name: Final = attrgetter("name")


def _pairs(ranks_of_workers: Iterable[int]) -> int:
    """Ordered pairs of ranks of two workers."""
    ranks = [*ranks_of_workers]
    return sum(ranks) ** 2 - sum(each * each for each in ranks)


class Prewarmer:
    """Runs canaries in the background, and tells routing which pairs cannot move KV."""

    def __init__(self, registry: WorkerRegistry, metrics: Metrics, served_name: str) -> None:
        self._registry = registry
        self._metrics = metrics
        self._canaries = CanaryRunner(served_name)
        self._health = PairHealth()
        self._new: dict[KnownRank, float] = {}
        """Ranks of new engine processes whose pairs are not queued yet, and the loop time after which these are not
        worth trying."""
        self._urgent: deque[Canary] = deque()
        self._later: deque[Canary] = deque()
        self._queued: set[Pair] = set()
        self._tried_at: dict[Pair, float] = {}
        self._busy: set[KnownRank] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Pairs still to try, at most."""
        return self._queue_length + self._pairs_of_new

    @property
    def _pairs_of_new(self) -> int:
        """Ordered pairs of ranks of two workers, one of which is new at least."""
        new: Counter[KnownWorker] = Counter(rank.worker for rank in self._new)
        every = {worker: len(worker.ranks) for worker in (*self._registry.workers, *new)}
        return _pairs(every.values()) - _pairs(every[worker] - new[worker] for worker in every)

    @property
    def _queue_length(self) -> int:
        return len(self._urgent) + len(self._later)

    @property
    def running(self) -> int:
        """Pairs that are tried now."""
        return len(self._running)

    def joined(self, worker: KnownWorker) -> None:
        """A new engine process: every pair with it, pairs that requests use in the present roles first."""
        had_failed = [self._health.forget(rank.name) for rank in worker.ranks]
        if any(had_failed):
            self._publish()
        until = asyncio.get_running_loop().time() + _TOTAL_SECONDS
        self._new |= dict.fromkeys(worker.ranks, until)
        self._wake.set()

    def queue_new(self, now: float) -> None:
        """Queue the pairs of new engine processes while there is room: all pairs of 2,000 workers are four million."""
        while self._new and self._queue_length < _MAX_PENDING:
            rank = next(iter(self._new))
            until = self._new.pop(rank)
            if not self._registry.has(rank.worker):
                continue
            # Pairs with one that is new as well are queued with that one.
            others = [other for other in self._registry.ranks if other not in self._new]
            others = [other for other in others if other.worker is not rank.worker]
            if now > until:
                self._metrics.prewarms["dropped"] += 2 * len(others)
                continue
            for other in sorted(others, key=_name):
                first, second = sorted((rank, other), key=_name)
                self._add(Canary(first, second, 1, until))
                self._add(Canary(second, first, 1, until))

    def suspected(self, rank: KnownRank) -> None:
        """Transfers from or to the rank have failed: try its pairs that are in use."""
        now = asyncio.get_running_loop().time()
        for other in self._registry.ranks:
            if self._queue_length >= _MAX_PENDING:
                return  # another failure raises suspicion again
            for prefill, decode in ((rank, other), (other, rank)):
                canary = Canary(prefill, decode, _MAX_ATTEMPTS, now + _TOTAL_SECONDS)
                calm = now - self._tried_at.get(canary.pair, -_CALM_SECONDS) >= _CALM_SECONDS
                if canary.in_use and calm and canary.pair not in self._health.failing:
                    self._add(canary)

    def report(self) -> PairsReport:
        """What canaries found of the workers that are there, and what was learnt of transfers between pools."""
        worker_of = {rank.name: rank.worker.name for rank in self._registry.ranks}
        found: dict[Pair, list[Pair]] = {}
        for pair in sorted(self._health.failing):
            prefill, decode = (worker_of.get(name, name) for name in pair)
            found.setdefault((prefill, decode), []).append(pair)
        return PairsReport(
            failing=tuple(self._failing(workers, pairs) for workers, pairs in sorted(found.items())),
            rates=self._registry.cluster.transfers.report(),
        )

    def _failing(self, workers: Pair, pairs: Sequence[Pair]) -> FailingPair:
        """Two workers of which the `pairs` of ranks fail: a worker works as little as the worst of its ranks does."""
        health, now = self._health, asyncio.get_running_loop().time()
        worst = max((health.failing[pair] for pair in pairs), key=lambda failing: failing.failures)
        return FailingPair(
            prefill=workers[0],
            decode=workers[1],
            failures=worst.failures,
            seconds=round(now - worst.since_seconds, 1),
            why=worst.why,
            prefill_works=min(health.pulled_from(prefill) for prefill, _ in pairs),
            decode_works=min(health.pulls_from(decode) for _, decode in pairs),
        )

    async def run(self) -> None:
        """Work until cancelled.

        A rank is in one pair at a time: two engines that shake hands with each other at the same moment, in opposite
        directions, block each other until a time-out of 35 s (vLLM 0.32 with NIXL 1.5, measured). All gateways of a
        cluster take the pairs in the same order, so that they seldom do this to each other either.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._retest(loop.time())
                self.queue_new(loop.time())
                while len(self._running) < _AT_ONCE and (canary := self._next(loop.time())) is not None:
                    self._begin(canary)
                self._wake.clear()
                try:
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._running:
                task.cancel()

    def _retest(self, now: float) -> None:
        ranks = {rank.name: rank for rank in self._registry.ranks}
        gone = {name for pair in self._health.failing for name in pair} - ranks.keys()
        for name in gone:
            self._health.forget(name)
        if gone:
            self._publish()
        self._tried_at = {pair: at for pair, at in self._tried_at.items() if pair[0] in ranks and pair[1] in ranks}
        for prefill, decode in list(self._health.due(now)):
            self._add(Canary(ranks[prefill], ranks[decode], _MAX_ATTEMPTS, now + _TOTAL_SECONDS))

    def _next(self, now: float) -> Canary | None:
        """The first pair whose workers are both free; pairs that are gone or too old are dropped."""
        for queue in (self._urgent, self._later):
            for _ in range(len(queue)):
                canary = queue.popleft()
                there = self._there(canary)
                if not there or canary.drains or now > canary.until:
                    self._queued.discard(canary.pair)
                    self._metrics.prewarms["dropped"] += there
                elif canary.prefill in self._busy or canary.decode in self._busy:
                    queue.append(canary)
                else:
                    self._queued.discard(canary.pair)
                    return canary
        return None

    def _there(self, canary: Canary) -> bool:
        return self._registry.has(canary.prefill.worker) and self._registry.has(canary.decode.worker)

    def _begin(self, canary: Canary) -> None:
        ranks = {canary.prefill, canary.decode}
        self._busy |= ranks
        task = asyncio.get_running_loop().create_task(self._try(canary))
        self._running.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            self._busy -= ranks
            self._wake.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("canary_died", exc_info=error)

        task.add_done_callback(ended)

    def _add(self, canary: Canary) -> None:
        if canary.pair in self._queued or canary.drains:
            return
        if not self._registry.cluster.workers.may_pair(canary.prefill.state, canary.decode.state):
            return
        if self._queue_length >= _MAX_PENDING:
            self._metrics.prewarms["dropped"] += 1
            return
        self._queued.add(canary.pair)
        (self._urgent if canary.in_use else self._later).append(canary)
        self._wake.set()

    async def _try(self, canary: Canary) -> None:
        loop = asyncio.get_running_loop()
        began_at = self._tried_at[canary.pair] = loop.time()
        try:
            outcome = await self._canaries.run(canary)
        except UpstreamError as error:
            outcome = "slow" if error.failure is Failure.TIMEOUT else error.failure.value
        seconds = loop.time() - began_at
        if outcome == "warm" and canary.decode.worker.agent is None and seconds > _SLOW_SECONDS:
            outcome = "slow"
        self._metrics.prewarms[outcome] += 1
        logger.log(
            logging.DEBUG if outcome in _GOOD else logging.WARNING,
            "prewarmed prefill=%s decode=%s attempt=%d outcome=%s seconds=%.3f",
            *canary.pair, canary.attempt, outcome, seconds,
        )  # fmt: skip
        if not self._there(canary):
            return
        self._judge(canary, outcome, loop.time())
        if outcome not in (*_GOOD, *_FAILED) and canary.attempt < _MAX_ATTEMPTS:
            delay_seconds = _RETRY_SECONDS * 2 ** (canary.attempt - 1)
            loop.call_later(delay_seconds, self._add, canary._replace(attempt=canary.attempt + 1))

    def _judge(self, canary: Canary, outcome: str, now: float) -> None:
        if outcome == "warm":
            changed = self._health.worked(canary.pair)
        elif outcome in _FAILED:
            changed = self._health.failed(canary.pair, now, outcome)
        else:
            return
        if changed:
            state = "works" if outcome == "warm" else "failing"
            logger.warning("kv_pair_%s prefill=%s decode=%s why=%s", state, *canary.pair, outcome)
            self._publish()

    def _publish(self) -> None:
        self._registry.cluster.workers.set_broken(self._health.failing)
