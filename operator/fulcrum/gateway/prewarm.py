"""Tries worker pairs before users do: the first NIXL handshake of a pair can take seconds (REFERENCES, section 2)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

import msgspec

from fulcrum.api.names import Role
from fulcrum.gateway.answer import Answer, Failure, UpstreamError
from fulcrum.gateway.body import read_answer, read_job
from fulcrum.gateway.job import COMPLETIONS_PATH
from fulcrum.gateway.metrics import Metrics
from fulcrum.gateway.request import new_request_id
from fulcrum.gateway.workers import Worker, WorkerView

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.02
_LEG_TIMEOUT_SECONDS: Final = 60.0
_MAX_ATTEMPTS: Final = 5
_RETRY_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 2.0
_GOOD: Final = ("warm", "no_kv")
_MAX_PENDING: Final = 4096


class _Pair(NamedTuple):
    prefill: Worker
    decode: Worker
    attempt: int


class Prewarmer:
    """Sends one tiny two-leg request over every ordered pair of workers, in the background."""

    def __init__(self, view: WorkerView, metrics: Metrics, served_name: str) -> None:
        self._view = view
        self._metrics = metrics
        self._job = read_job(
            COMPLETIONS_PATH,
            msgspec.json.encode({"model": served_name, "prompt": [1], "max_tokens": 1, "temperature": 0}),
            served_name,
        )
        self._urgent: deque[_Pair] = deque()
        self._later: deque[_Pair] = deque()
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Pairs still to try."""
        return len(self._urgent) + len(self._later)

    def joined(self, worker: Worker) -> None:
        """A new engine process: every pair with it, pairs that requests use in the present roles first."""
        for other in sorted(self._view.workers, key=lambda each: each.name):
            if other is not worker:
                first, second = sorted((worker, other), key=lambda each: each.name)
                self._add(_Pair(first, second, 1))
                self._add(_Pair(second, first, 1))

    async def run(self) -> None:
        """Work until cancelled.

        One pair at a time: two engines that shake hands with each other at the same moment, in opposite directions,
        block each other until a time-out of 35 s (vLLM 0.32 with NIXL 1.5, measured). All gateways of a cluster take
        the pairs in the same order, so that they do not do this to each other either.
        """
        while True:
            while not self.pending:
                self._wake.clear()
                await self._wake.wait()
            pair = (self._urgent or self._later).popleft()
            if pair.prefill in self._view.workers and pair.decode in self._view.workers:
                await self._try(pair)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _add(self, pair: _Pair) -> None:
        if self.pending >= _MAX_PENDING:
            self._metrics.prewarms["dropped"] += 1
            return
        in_use = (pair.prefill.role, pair.decode.role) == (Role.PREFILL, Role.DECODE)
        (self._urgent if in_use else self._later).append(pair)
        self._wake.set()

    async def _try(self, pair: _Pair) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            outcome = await self._two_legs(pair)
        except UpstreamError as error:
            outcome = error.failure.value
        seconds = loop.time() - began_at
        if outcome == "warm" and seconds > _SLOW_SECONDS:
            # With the policy `recompute` a decode engine answers although its handshake failed; it only took long.
            outcome = "slow"
        self._metrics.prewarms[outcome] += 1
        logger.log(
            logging.DEBUG if outcome in _GOOD else logging.WARNING,
            "prewarmed prefill=%s decode=%s attempt=%d outcome=%s seconds=%.3f",
            pair.prefill.name, pair.decode.name, pair.attempt, outcome, seconds,
        )  # fmt: skip
        if outcome not in _GOOD and pair.attempt < _MAX_ATTEMPTS:
            delay_seconds = _RETRY_SECONDS * 2 ** (pair.attempt - 1)
            loop.call_later(delay_seconds, self._add, pair._replace(attempt=pair.attempt + 1))

    async def _two_legs(self, pair: _Pair) -> str:
        request_id = b"prewarm-" + new_request_id()
        answer = await self._leg(pair.prefill, request_id, self._job.prefill_body())
        read = read_answer(answer.body)
        kv = read.usable_kv if read is not None else None
        if kv is None:
            return "no_kv"
        await self._leg(pair.decode, request_id, self._job.decode_body(kv))
        return "warm"

    async def _leg(self, worker: Worker, request_id: bytes, body: bytes) -> Answer:
        request = worker.pool.request(COMPLETIONS_PATH, request_id, body)
        deadline = asyncio.get_running_loop().time() + _LEG_TIMEOUT_SECONDS
        answer = await worker.pool.exchange(request, sink=None, deadline=deadline)
        if answer.status != 200:
            raise UpstreamError(Failure.ERROR_STATUS, f"status {answer.status}")
        return answer
