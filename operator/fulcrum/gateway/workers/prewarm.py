"""Tries pairs of workers before users do, and again on suspicion: a two-leg request whose KV must really cross.

The first NIXL handshake of a pair can take seconds (REFERENCES, section 2). A pull that fails is hidden by the policy
`recompute`: the decode engine computes the prompt itself and answers. So a canary has a prompt that no cache knows, and
counts only when vLLM's own counters say that the decode engine pulled it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import Final, NamedTuple

import msgspec

from fulcrum.api.gateway import FailingPair, PairsReport
from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, TransferCounters
from fulcrum.gateway.http.request import new_request_id
from fulcrum.gateway.http.upstream_answer import Answer, Failure, UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.openai.bodies import read_answer, read_request
from fulcrum.gateway.openai.inference_request import COMPLETIONS_PATH, InferenceRequest
from fulcrum.gateway.workers.registry import Worker, WorkerRegistry
from fulcrum.routing import Pair, PairHealth

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""Pairs that are tried at the same time; each worker is in one of them at most."""
_LEG_TIMEOUT_SECONDS: Final = 20.0
_REPORT_TIMEOUT_SECONDS: Final = 1.0
_TOTAL_SECONDS: Final = 120.0
"""How long after a worker joined its pairs wait for their turn; what was not tried by then is left to requests."""
_MAX_ATTEMPTS: Final = 5
_RETRY_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 2.0
"""A canary that takes longer has waited for a handshake, most likely one that failed (5 s in vLLM 0.32)."""
_BOOKED_SECONDS: Final = 3.0
"""How long vLLM and its agent may take to count what was answered."""
_POLL_SECONDS: Final = 0.3
_CALM_SECONDS: Final = 10.0
"""Pause between two canaries of a good pair, however often it is suspected."""
_MAX_PENDING: Final = 4096
_PROMPT_TOKENS: Final = 40
"""More than a KV block of most engines, and no work to speak of."""
_TOKEN_IDS: Final = range(10, 1000)
"""Ordinary ids of every vocabulary."""
_GOOD: Final = ("warm", "no_kv", "unverified")
_FAILED: Final = ("recomputed", "decode_timeout", "decode_error")
"""Outcomes that say that KV does not cross; others say that one of the engines did not answer."""
_OK: Final = 200
_SERVER_ERRORS: Final = 500

_reports: Final = msgspec.json.Decoder(LoadReport)


class _Canary(NamedTuple):
    prefill: Worker
    decode: Worker
    attempt: int
    until: float
    """Loop time after which it is no longer worth trying."""

    @property
    def pair(self) -> Pair:
        return self.prefill.name, self.decode.name

    @property
    def drains(self) -> bool:
        """One of the two finishes its work: KV that a canary leaves there would be waited for."""
        return Role.DRAINING in (self.prefill.role, self.decode.role)

    @property
    def in_use(self) -> bool:
        return (self.prefill.role, self.decode.role) == (Role.PREFILL, Role.DECODE)


class Prewarmer:
    """Runs canaries in the background, and tells routing which pairs cannot move KV."""

    def __init__(self, registry: WorkerRegistry, metrics: Metrics, served_name: str) -> None:
        self._registry = registry
        self._metrics = metrics
        self._served_name = served_name
        self._health = PairHealth()
        self._urgent: deque[_Canary] = deque()
        self._later: deque[_Canary] = deque()
        self._queued: set[Pair] = set()
        self._tried_at: dict[Pair, float] = {}
        self._busy: set[Worker] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._random = random.Random()  # noqa: S311 (prompts, no secrets)

    @property
    def pending(self) -> int:
        """Pairs still to try."""
        return len(self._urgent) + len(self._later)

    @property
    def running(self) -> int:
        """Pairs that are tried now."""
        return len(self._running)

    def joined(self, worker: Worker) -> None:
        """A new engine process: every pair with it, pairs that requests use in the present roles first."""
        self._health.forget(worker.name)
        self._publish()
        until = asyncio.get_running_loop().time() + _TOTAL_SECONDS
        for other in sorted(self._registry.workers, key=lambda worker: worker.name):
            if other is not worker:
                first, second = sorted((worker, other), key=lambda worker: worker.name)
                self._add(_Canary(first, second, 1, until))
                self._add(_Canary(second, first, 1, until))

    def suspected(self, worker: Worker) -> None:
        """Transfers from or to the worker have failed: try its pairs that are in use."""
        now = asyncio.get_running_loop().time()
        for other in self._registry.workers:
            for prefill, decode in ((worker, other), (other, worker)):
                canary = _Canary(prefill, decode, _MAX_ATTEMPTS, now + _TOTAL_SECONDS)
                calm = now - self._tried_at.get(canary.pair, -_CALM_SECONDS) >= _CALM_SECONDS
                if canary.in_use and calm and not self._health.is_failing(canary.pair):
                    self._add(canary)

    def report(self) -> PairsReport:
        """What canaries found of the workers that are there."""
        now = asyncio.get_running_loop().time()
        health = self._health
        return PairsReport(
            failing=tuple(
                FailingPair(
                    prefill=prefill,
                    decode=decode,
                    failures=failing.failures,
                    seconds=round(now - failing.since_seconds, 1),
                    why=failing.why,
                    prefill_works=health.pulled_from(prefill),
                    decode_works=health.pulls_from(decode),
                )
                for (prefill, decode), failing in sorted(health.failing.items())
            )
        )

    async def run(self) -> None:
        """Work until cancelled.

        A worker is in one pair at a time: two engines that shake hands with each other at the same moment, in opposite
        directions, block each other until a time-out of 35 s (vLLM 0.32 with NIXL 1.5, measured). All gateways of a
        cluster take the pairs in the same order, so that they seldom do this to each other either.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._retest(loop.time())
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
        workers = {worker.name: worker for worker in self._registry.workers}
        gone = {name for pair in self._health.failing for name in pair} - workers.keys()
        for name in gone:
            self._health.forget(name)
        if gone:
            self._publish()
        self._tried_at = {pair: at for pair, at in self._tried_at.items() if pair[0] in workers and pair[1] in workers}
        for prefill, decode in list(self._health.due(now)):
            self._add(_Canary(workers[prefill], workers[decode], _MAX_ATTEMPTS, now + _TOTAL_SECONDS))

    def _next(self, now: float) -> _Canary | None:
        """The first pair whose workers are both free; those that are gone or too old are dropped."""
        for queue in (self._urgent, self._later):
            for _ in range(len(queue)):
                canary = queue.popleft()
                there = canary.prefill in self._registry.workers and canary.decode in self._registry.workers
                if not there or canary.drains or now > canary.until:
                    self._queued.discard(canary.pair)
                    self._metrics.prewarms["dropped"] += there
                elif canary.prefill in self._busy or canary.decode in self._busy:
                    queue.append(canary)
                else:
                    self._queued.discard(canary.pair)
                    return canary
        return None

    def _begin(self, canary: _Canary) -> None:
        workers = {canary.prefill, canary.decode}
        self._busy |= workers
        task = asyncio.get_running_loop().create_task(self._try(canary))
        self._running.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            self._busy -= workers
            self._wake.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("canary_died", exc_info=error)

        task.add_done_callback(ended)

    def _add(self, canary: _Canary) -> None:
        if canary.pair in self._queued or canary.drains:
            return
        if not self._registry.cluster.may_pair(canary.prefill.state, canary.decode.state):
            return
        if self.pending >= _MAX_PENDING:
            self._metrics.prewarms["dropped"] += 1
            return
        self._queued.add(canary.pair)
        (self._urgent if canary.in_use else self._later).append(canary)
        self._wake.set()

    async def _try(self, canary: _Canary) -> None:
        loop = asyncio.get_running_loop()
        began_at = self._tried_at[canary.pair] = loop.time()
        try:
            outcome = await self._two_legs(canary)
        except UpstreamError as error:
            outcome = error.failure.value
        seconds = loop.time() - began_at
        if outcome == "warm" and canary.decode.agent is None and seconds > _SLOW_SECONDS:
            outcome = "slow"
        self._metrics.prewarms[outcome] += 1
        logger.log(
            logging.DEBUG if outcome in _GOOD else logging.WARNING,
            "prewarmed prefill=%s decode=%s attempt=%d outcome=%s seconds=%.3f",
            *canary.pair, canary.attempt, outcome, seconds,
        )  # fmt: skip
        if canary.prefill not in self._registry.workers or canary.decode not in self._registry.workers:
            return
        self._judge(canary, outcome, loop.time())
        if outcome not in (*_GOOD, *_FAILED) and canary.attempt < _MAX_ATTEMPTS:
            delay_seconds = _RETRY_SECONDS * 2 ** (canary.attempt - 1)
            loop.call_later(delay_seconds, self._add, canary._replace(attempt=canary.attempt + 1))

    def _judge(self, canary: _Canary, outcome: str, now: float) -> None:
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
        self._registry.cluster.set_broken(self._health.by_prefill())

    def _canary_request(self) -> InferenceRequest:
        prompt = self._random.choices(_TOKEN_IDS, k=_PROMPT_TOKENS)
        body = {"model": self._served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        return read_request(COMPLETIONS_PATH, msgspec.json.encode(body), self._served_name)

    async def _two_legs(self, canary: _Canary) -> str:
        request, request_id = self._canary_request(), b"prewarm-" + new_request_id()
        answer = await self._leg(canary.prefill, request_id, request.prefill_body())
        read = read_answer(answer.body)
        kv = read.usable_kv if read is not None else None
        if kv is None:
            return "no_kv"
        before = await self._load(canary.decode)
        try:
            await self._leg(canary.decode, request_id, request.decode_body(kv))
        except UpstreamError as error:
            if error.failure is Failure.ERROR_STATUS:
                return "decode_error"
            if error.failure is Failure.TIMEOUT and await self._pulls_nothing(canary.decode, before):
                return "decode_timeout"
            raise
        if canary.decode.agent is None:
            return "warm"  # there is nobody to ask
        if before is None or before.transfers is None:
            return "unverified"
        return await self._verified(canary.decode, before.transfers)

    async def _verified(self, decode: Worker, before: TransferCounters) -> str:
        """Whether the decode engine has pulled a canary since `before`.

        Other requests pull at the same time, so any failure that was counted meanwhile counts as the canary's: a pair
        that is blamed for another's failure is tried again within seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BOOKED_SECONDS
        computed = False
        while loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            load = await self._load(decode)
            if load is None or load.transfers is None:
                continue
            after = load.transfers
            if after.pulled_tokens - before.pulled_tokens >= _PROMPT_TOKENS // 2:
                return "recomputed" if after.failed_transfers > before.failed_transfers else "warm"
            computed = after.computed_tokens - before.computed_tokens >= _PROMPT_TOKENS // 2
        # Neither pulled nor computed: the engine was restarted meanwhile, or does not count.
        return "recomputed" if computed else "unverified"

    async def _pulls_nothing(self, decode: Worker, before: LoadReport | None) -> bool:
        """Whether a canary without an answer waits for its KV, and not for its turn in a busy engine."""
        after = await self._load(decode)
        if before is None or before.transfers is None or after is None or after.transfers is None:
            return False
        if after.transfers.pulled_tokens != before.transfers.pulled_tokens:
            return False
        return after.transfers.failed_transfers > before.transfers.failed_transfers or after.running == 0

    async def _load(self, worker: Worker) -> LoadReport | None:
        if worker.agent is None:
            return None
        deadline = asyncio.get_running_loop().time() + _REPORT_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                answer = await worker.agent.exchange(worker.agent.question("/load"), sink=None, deadline=deadline)
            return _reports.decode(answer.body) if answer.status == _OK else None
        except (UpstreamError, TimeoutError, msgspec.DecodeError):
            return None

    async def _leg(self, worker: Worker, request_id: bytes, body: bytes) -> Answer:
        request = worker.pool.request(COMPLETIONS_PATH, request_id, body)
        deadline = asyncio.get_running_loop().time() + _LEG_TIMEOUT_SECONDS
        answer = await worker.pool.exchange(request, sink=None, deadline=deadline)
        if answer.status != _OK:
            failure = Failure.ERROR_STATUS if answer.status >= _SERVER_ERRORS else Failure.PROTOCOL
            raise UpstreamError(failure, f"status {answer.status}")
        return answer
